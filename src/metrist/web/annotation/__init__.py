"""Annotation: people rate, compare, mark or review outputs in a browser, and every click is kept.

schemas    what raters are asked: ratings on a rubric, choices between two outputs, errors in a text, a questionnaire
sampling   which outputs or pairs they see, and with what weight
project    a folder with the tasks, who gets which, and the clicks
store      the log of clicks, which survives crashes
answers    the answers that the clicks give, and the tasks that raters answer differently
estimates  the order of the tasks by what their ratings tell, and the mean ratings that follow
export     answers as rows that `metrist meta`, `build pairs`, `train` and `calibrate` read, and as Label Studio's JSON
"""
