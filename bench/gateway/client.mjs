// The official SDK for Node through the gateway: node client.mjs FOLDER_OF_THE_SDK BASE_URL
const [folder, baseURL] = process.argv.slice(2);
const { default: OpenAI } = await import(`${folder}/index.mjs`);
const client = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0 });
const ask = { model: "m", messages: [{ role: "user", content: "hi" }] };
const answer = await client.chat.completions.create(ask);
let events = 0;
for await (const _ of await client.chat.completions.create({ ...ask, stream: true })) events += 1;
console.log(answer.usage.total_tokens, "tokens,", events, "events");
