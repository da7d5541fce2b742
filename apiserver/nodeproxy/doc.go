// Package nodeproxy connects clients through the API server to processes on nodes: the logs of a
// pod's containers, exec, attach and port-forward by way of the pod's kubelet, and the HTTP proxies
// of pods, services and nodes.
//
// It owns the route to a node (its address, its kubelet's port, TLS with the API server's client
// certificate), the form of a request to a kubelet, and the transfer of a client's upgraded
// connection (SPDY or WebSocket).
//
// Invariants:
//   - a kubelet is called only over TLS, and only when its certificate names the node
//     (Config.IsKubelet): an address proves nothing. A client may waive that for the logs; then a
//     certificate of another CA is good, and one of the cluster's must still be the node's;
//   - the HTTP proxies do not reach this machine itself or its links, even if a pod's or a node's
//     status or an endpoint has such an address;
//   - a stream opened with GET, as WebSocket clients must, needs the permission to create it.
//
// It keeps no state, and decides no other permissions.
package nodeproxy
