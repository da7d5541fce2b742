// Package node puts a server or an agent together out of the rooms: it makes the interfaces meet,
// and orders start and stop. It holds no logic of a cluster; where it does more than pass a value
// on, it should become somebody's.
//
// The order of a server:
//
//	identity ─▶ peer port ─▶ store ─▶ gossip ─▶ API ─▶ leader work ─▶ containerd ─▶ network ─▶ kubelet
//
// Each relies on what stands left of it, and stopping goes from right to left: pods' owners stop
// writing before the API goes, and the store hands leadership over when nobody needs it any more.
package node
