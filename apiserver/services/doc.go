// Package services gives Services their addresses and node ports, and takes them back.
//
// A Service is written in one transaction with the reservations of its addresses and node ports,
// and with the IPAddress objects that show the addresses to users. What the transaction does is
// derived from the stored and the new Service, so every way to write one is covered, and a crash or
// a lost answer leaves all of it or nothing. There is no bitmap that all servers write: two
// transactions conflict only if they want the same value. The loser chooses again, unless its
// client had asked for that value.
//
// What always holds:
//   - a value has one reservation, and so one Service;
//   - an address comes from a ServiceCIDR that was ready, and not being deleted, at the moment of
//     the transaction. While there is no ServiceCIDR "kubernetes", the configured ranges stand for
//     it;
//   - nobody but the Service that it is kept for gets a reserved address: the first of the default
//     range is the API's (default/kubernetes), the tenth that of cluster DNS
//     (kube-system/kube-dns).
//
// The addresses outside of the cluster that Barque's own load balancers give are reserved in the
// same way, with the write of the status that has them: addresses of pools, which Services may
// share, and ports of the nodes. A condition in the status marks these (internal/balancers), so
// statuses of other load balancers are as free as in Kubernetes.
//
// The reservations are older than the IPAddress objects. They stay beside them, because users may
// delete an IPAddress of a Service that lives, and because servers of an older version know only
// them. Repair, on the leader, makes what those lack, and finds what they have left behind.
package services
