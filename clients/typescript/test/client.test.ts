/** Against a service with rougeL, chrf, a guard and a token, which METRIST_URL and METRIST_TOKEN name. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { createClient, readRows, type Schemas } from "../src/index.js";

const baseUrl = process.env.METRIST_URL!;
const token = process.env.METRIST_TOKEN!;
const client = createClient({ baseUrl, token });
const record: Schemas["RecordBody"] = { output: "a cat sat", references: ["the cat sat down"] };

test("scores come in the order of the records", async () => {
  const { data, error } = await client.POST("/v1/score", {
    body: { metrics: ["rougeL"], records: [record, { output: "no reference" }] },
  });
  assert.equal(error, undefined);
  // Two of three words, in a reference of four: 2 · (2/3 · 2/4) / (2/3 + 2/4).
  assert.ok(Math.abs(data.results[0]!.scores.rougeL!.value! - 4 / 7) < 1e-12);
  assert.equal(data.results[1]!.scores.rougeL!.value, null);
  assert.equal(data.results[1]!.scores.rougeL!.failure?.kind, "missing_input");
});

test("errors have a code and a place", async () => {
  const { data, error, response } = await client.POST("/v1/score", { body: { metrics: ["bleu"], records: [record] } });
  assert.equal(data, undefined);
  assert.equal(response.status, 422);
  assert.equal(error.error.code, "unknown_metric");
  assert.equal(error.error.field, "metrics[0]");
});

test("a misspelt field is found before the request is sent", async () => {
  // @ts-expect-error: it is `records`.
  const { error } = await client.POST("/v1/score", { body: { record: [record] } });
  assert.ok(error);
});

test("a token is needed", async () => {
  const { response } = await createClient({ baseUrl }).GET("/v1/metrics");
  assert.equal(response.status, 401);
});

test("headers of the caller are sent", async () => {
  const traced = createClient({ baseUrl, token, headers: { "X-Request-ID": "abc" } });
  const { response } = await traced.GET("/v1/metrics");
  assert.equal(response.headers.get("X-Request-ID"), "abc");
});

test("rows of a stream come one by one", async () => {
  const records = Array.from({ length: 500 }, (_, n) => ({ ...record, item: `item ${n} – ünïcode` }));
  const { data } = await client.POST("/v1/score", {
    body: { metrics: ["chrf"], records, stream: true },
    parseAs: "stream",
  });
  const rows: Schemas["ScoredRecord"][] = [];
  for await (const row of readRows<Schemas["ScoredRecord"]>(data!)) rows.push(row);
  assert.deepEqual(rows.map((row) => row.item), records.map((each) => each.item));
  assert.ok(rows.every((row) => typeof row.scores.chrf!.value === "number"));
});

test("a stream that ends early or fails is an error", async () => {
  const read = async (text: string) => {
    const rows = [];
    for await (const row of readRows(new Blob([text]).stream())) rows.push(row);
    return rows;
  };
  assert.deepEqual(await read('{"item":"1"}\n{"done":true,"count":1}\n'), [{ item: "1" }]);
  await assert.rejects(read('{"item":"1"}\n'), /not complete/);
  await assert.rejects(read('{"error":{"code":"shutting_down","message":"the service stops"}}\n'), /shutting_down/);
});

test("outputs are guarded and pairs are judged", async () => {
  const guard = await client.POST("/v1/guard", { body: { record: { ...record, output: "no" } } });
  assert.equal(guard.data!.verdict, "fail");
  const { data } = await client.POST("/v1/prefer", {
    body: { metrics: ["rougeL"], pairs: [{ first: "a cat sat", second: "a dog", references: record.references! }] },
  });
  assert.equal(data!.results[0]!.judgments.rougeL!.preference, "first");
});
