// The official SDK for Node through the gateway: node client.mjs FOLDER_OF_THE_SDK BASE_URL TIMES
const [folder, baseURL, times] = process.argv.slice(2);
const { default: OpenAI } = await import(`${folder}/index.mjs`);
const client = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0 });
const ask = { model: "m", messages: [{ role: "user", content: "hi" }] };
let [tokens, events] = [0, 0];
await Promise.all(
  Array.from({ length: Number(times) }, async () => {
    const answer = await client.chat.completions.create(ask);
    tokens += answer.usage.total_tokens;
    for await (const _ of await client.chat.completions.create({ ...ask, stream: true })) events += 1;
  }),
);
console.log(tokens, "tokens,", events, "events");
