// Package clients drives a Barque server with the clients that its users have: kubectl, client-go,
// Helm and an operator on controller-runtime. It is a module of its own, so that the product
// depends on none of them, and it knows nothing of Barque but the binary: BARQUE_BIN names it.
// `make test-clients` builds it and runs the tests.
//
// Each test starts one server on the loopback interface, without a node, and may restart it. The
// controllers run in it, so that Deployments make ReplicaSets and the objects of a deleted owner
// go. A difference from kube-apiserver is a fault of Barque's.
package clients
