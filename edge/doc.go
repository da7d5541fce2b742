// Package edge and the packages below it stand between a cluster and its clients outside:
// addresses of Services and of the API, and routes to them by name and path.
//
//   - pool chooses the addresses of a Service from the cluster's pools.
//   - provider is bare metal as a cloud, behind the interface of k8s.io/cloud-provider.
//   - hold decides which node answers for an address, and for how long.
//   - services reads from Services which addresses these are, and which nodes may answer.
//   - announce answers for the addresses that this node holds, by ARP and NDP.
//   - bgp announces addresses to routers, from all nodes that may take their packets.
//   - redirect leads the API's own address to this server's API while it is held.
//   - gateway routes requests, by objects of the Gateway API and by Ingresses.
//
// They see the cluster through client-go, as network does. cmd hands them the connections to other
// nodes and the term of the leader.
package edge
