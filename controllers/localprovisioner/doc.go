// Package localprovisioner is the leader's part of the volumes that the cluster makes itself, on
// disks of its nodes, for claims whose class names the provisioner local.barque.io. It keeps
// upstream's contract of external provisioners: the binder says whose a claim is, by an annotation,
// and the scheduler on which node it is wanted, by another one.
//
//	claim, with selected-node ──▶ PV (local, on that node) ──▶ bound by the binder
//	                                                             │ the claim goes: Released
//	gone ◀── finalizer off ◀── directory deleted ◀── deleted ◀───┘
//	            by the node                          by this controller
//
// The node makes the directory when the first pod comes, and deletes it, also when it was down
// meanwhile (see kubelet/localvolumes). A PV of a node that is no longer in the cluster has nobody
// to delete its data: its finalizer is taken off here, once the Node object is gone.
//
// It also lays down the class that claims get by default, once (see defaults), and publishes what
// nodes have left, so that the scheduler does not place what does not fit. Sizes of volumes are not
// enforced here: they are what was asked for.
package localprovisioner
