// Package registry is the admission chain as data: every admission plugin of Kubernetes in
// upstream's order, the default set, the needs of each, and how Barque makes it.
//
// A server calls [Build] once. The flags that choose plugins and configure them are [Settings].
//
// Invariants:
//   - The chain has upstream's order. The webhooks, the policies and quota see requests as all
//     other plugins have left them.
//   - A plugin whose resources are not served is left out: its informers would never be synced,
//     and every write would wait for them.
//   - Webhooks and policies never see objects that the server itself writes through its own client:
//     those of every cluster, and the tokens by which machines join. So none of them can keep a
//     cluster from starting.
//
// The checks of RBAC against escalation are no plugin. A server has them behind this chain, and no
// flag takes them away.
package registry
