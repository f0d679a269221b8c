/** A typed client of `metrist serve`. `schema.ts` is generated from the OpenAPI document of the service. */

import createFetchClient, { type Client as FetchClient, type ClientOptions } from "openapi-fetch";
import type { components, paths } from "./schema.js";

export type { components, paths };
/** The bodies of requests and answers by name: `Schemas["RecordBody"]`. */
export type Schemas = components["schemas"];
export type Client = FetchClient<paths, "application/json">;

export interface Options extends ClientOptions {
  /** One of the service's tokens. */
  token?: string;
}

/** A client of the service at `baseUrl`. Its methods resolve to `data`, or to an `error` with a code. */
export function createClient({ token, ...options }: Options): Client {
  const client: Client = createFetchClient<paths, "application/json">(options);
  if (token !== undefined) {
    client.use({ onRequest: ({ request }) => request.headers.set("Authorization", `Bearer ${token}`) });
  }
  return client;
}

/** The rows of an answer to a request with `stream: true`, which is read with `parseAs: "stream"`, as they come. Throws
 * if the service fails in the middle, or if the answer ends before it is complete. */
export async function* readRows<Row>(answer: ReadableStream<Uint8Array>): AsyncGenerator<Row> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of answer) {
    const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const row = JSON.parse(line);
      if (row.done) return;
      if (row.error) throw new Error(`${row.error.code}: ${row.error.message}`);
      yield row;
    }
  }
  throw new Error("the answer is not complete");
}
