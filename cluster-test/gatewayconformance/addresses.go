package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// class is the GatewayClass that the suite runs with. Each of its Gateways has an address of the
// pool: Gateways of the suite are not distinct, so they cannot share the nodes' addresses.
const class = "barque-pool"

const classOfPool = `
apiVersion: edge.barque.io/v1
kind: AddressPool
metadata: {name: conformance}
spec: {addresses: [%s-%s]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: barque-pool}
spec:
  controllerName: barque.io/gateway
  parametersRef: {group: edge.barque.io, kind: AddressPool, name: conformance}
`

// addresses are some of the nodes' network that no machine of a dev cluster has.
type addresses struct {
	// first and last are the pool. usable is one of it that the suite names, the last one, and
	// unusable is of no pool.
	first, last, usable, unusable netip.Addr
}

// addressesOf chooses them in the network of a node, which is a /24 in a dev cluster.
func addressesOf(node netip.Addr) (addresses, error) {
	if !node.Is4() {
		return addresses{},
			fmt.Errorf("the address %s of a node is not IPv4: choose a pool for it in addresses.go", node)
	}
	at := func(number byte) netip.Addr {
		b := node.As4()
		b[3] = number
		return netip.AddrFrom4(b)
	}
	return addresses{first: at(180), last: at(249), usable: at(249), unusable: at(250)}, nil
}

// addressed makes the pool and the class, and waits until the class is accepted.
func (l *lab) addressed(ctx context.Context) (of addresses, err error) {
	nodes, err := l.cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return of, err
	}
	for _, a := range nodes.Items[0].Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			if of, err = addressesOf(addr); err != nil {
				return of, err
			}
		}
	}
	if !of.first.IsValid() {
		return of, fmt.Errorf("the node %s has no address", nodes.Items[0].Name)
	}
	// The kinds, and then the status, take a moment in a new cluster.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	run := func(stdin string, args ...string) error {
		for {
			r := l.cluster.KubectlResult(ctx, stdin, args...)
			if r.Error == nil {
				return nil
			}
			select {
			case <-ctx.Done():
				return errors.Join(fmt.Errorf("%s%s", r.Out, r.Err), r.Error)
			case <-time.After(time.Second): // brief: it is a pause
			}
		}
	}
	if err := run(fmt.Sprintf(classOfPool, of.first, of.last), "apply", "-f", "-"); err != nil {
		return of, fmt.Errorf("make the class of the suite: %w", err)
	}
	if err := run("", "wait", "--for=condition=Accepted", "gatewayclass/"+class,
		"--timeout=5s"); err != nil { // brief: it is tried again
		return of, fmt.Errorf("the class of the suite is not accepted: %w", err)
	}
	return of, nil
}
