// Package node assembles a server or an agent from the other packages: it connects their
// interfaces, and orders start and stop. It holds no logic of a cluster. Code beyond passing a
// value on belongs in another package.
//
// The order of a server:
//
//	identity ─▶ peer port ─▶ store ─▶ gossip ─▶ API ─▶ leader work ─▶ containerd ─▶ network ─▶ kubelet
//
// Each part depends on the parts to its left, and stopping goes from right to left. The controllers
// stop writing before the API stops. The store hands leadership over when no part needs it any
// more.
package node
