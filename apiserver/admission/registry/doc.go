// Package registry is the admission chain as data: every admission plugin of Kubernetes in
// upstream's order, which of them run by default, what each needs, and how Barque makes it.
//
// A server calls [Build] once. The flags that choose plugins and configure them are [Settings].
//
// Invariants:
//   - The chain has upstream's order. The webhooks, the policies and quota see what all other
//     plugins have left.
//   - A plugin whose resources are not served is left out: its informers would never be synced,
//     and every write would wait for them.
//   - Webhooks and policies never see what the server itself writes through its own client: what
//     every cluster has, and the tokens by which machines join. So none of them can keep a cluster
//     from starting.
//
// The checks of RBAC against escalation are no plugin. A server has them behind this chain, and no
// flag takes them away.
package registry
