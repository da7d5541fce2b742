// An informer on the ConfigMaps of a round, as the client's documentation has it, and a writer of
// them. The ConfigMap ROUND-end ends the program, which prints what it has done.
import * as k8s from '@kubernetes/client-node';

const [namespace, round] = process.argv.slice(2);
const config = new k8s.KubeConfig();
config.loadFromDefault();
const api = config.makeApiClient(k8s.CoreV1Api);
const labelSelector = `round=${round}`;
const created = [], seen = {}, errors = [];
let ended = false;

const informer = k8s.makeInformer(config, `/api/v1/namespaces/${namespace}/configmaps`,
  () => api.listNamespacedConfigMap({ namespace, labelSelector }), labelSelector);
informer.on('add', (object) => {
  const name = object.metadata.name;
  seen[name] = (seen[name] ?? 0) + 1;
  if (name === `${round}-end`) ended = true;
});
informer.on('error', (err) => {
  errors.push(`informer: ${err}`);
  setTimeout(begin, 1000);
});

// begin starts the informer; its first list may fail, too.
function begin() {
  informer.start().catch((err) => {
    errors.push(`informer: ${err}`);
    setTimeout(begin, 1000);
  });
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

begin();
for (let n = 0; !ended; await pause(100)) {
  const name = `${round}-${n}`;
  try {
    await api.createNamespacedConfigMap({ namespace, body: { metadata: { name, labels: { round } } } });
  } catch (err) {
    if (err.code !== 409) { // 409: made by a try whose answer was lost
      errors.push(`create: ${err.code ?? err}`);
      continue;
    }
  }
  created.push(name);
  n++;
}
// What was acknowledged after ROUND-end may still be on its way.
for (let tries = 0; tries < 600 && created.some((name) => !seen[name]); tries++) await pause(100);
await informer.stop();
console.log(JSON.stringify({ created, seen, errors: errors.map((e) => e.slice(0, 200)) }));
process.exit(0);
