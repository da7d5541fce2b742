package clustertest

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const gatewayWithAddress = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: %[1]s}
spec:
  gatewayClassName: barque
  infrastructure: {annotations: {barque.io/address-pool: gateways}}
  listeners: [{name: web, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: %[1]s}
spec:
  parentRefs: [{name: %[1]s}]
  rules: [{backendRefs: [{name: %[1]s, port: 80}]}]
`

// TestGatewayAddresses: two Gateways with the same port each have an address of a pool, and their
// own routes there. Nodes lead packets to their gateway, the Service ends with its Gateway, and a
// Gateway that asks for no address any more has the nodes' ones.
func TestGatewayAddresses(t *testing.T) {
	t.Parallel()
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Options{Servers: 1, Agents: 1, Registry: images})
	s := NewSpace(t, c)
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	s.Apply(fmt.Sprintf(`
apiVersion: edge.barque.io/v1
kind: AddressPool
metadata: {name: gateways}
spec: {addresses: [%s/30]}
`, poolOf(s)))
	addresses := map[string]string{}
	for _, name := range []string{"one", "two"} {
		s.K("create", "deployment", name, "--image=barque.local/hello:1")
		s.K("expose", "deployment", name, "--port=80", "--target-port=8080")
		Eventually(t, deadline, "the kinds of the Gateway API", func(context.Context) error {
			return s.ApplyResult(fmt.Sprintf(gatewayWithAddress, name)).Error
		})
		addresses[name] = gatewayAddress(s, name)
	}
	if addresses["one"] == addresses["two"] {
		t.Errorf("both have %s", addresses["one"])
	}
	for name, address := range addresses {
		Eventually(t, deadline, name+" at "+address, func(ctx context.Context) error {
			return get(ctx, "http://"+address, "Hello from "+name+"-")
		})
	}
	nodes, err := s.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node := internal(nodes.Items[0])
	if err := get(t.Context(), "http://"+node, ""); err == nil {
		t.Errorf("the node itself answers at %s, where no Gateway is", node)
	}
	s.K("delete", "gateway", "one")
	Eventually(t, deadline, "the end of the Service", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().Services(s.Namespace).Get(ctx, "one-barque", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %v", err)
	})
	s.K("patch", "gateway", "two", "--type=json", "-p", `[{"op": "remove", "path": "/spec/infrastructure"}]`)
	Eventually(t, deadline, "two at the node "+node, func(ctx context.Context) error {
		return get(ctx, "http://"+node, "Hello from two-")
	})
}

// poolOf is a beginning of a pool in the nodes' network, which is a /24.
func poolOf(s *Space) netip.Addr {
	s.Helper()
	nodes, err := s.Client.CoreV1().Nodes().List(s.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) == 0 {
		s.Fatalf("no nodes: %v", err)
	}
	b := netip.MustParseAddr(internal(nodes.Items[0])).As4()
	b[3] = 200
	return netip.AddrFrom4(b)
}

// internal is the address of a node.
func internal(n corev1.Node) string {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	return ""
}

// gatewayAddress is the address of a Gateway that is programmed.
func gatewayAddress(s *Space, name string) string {
	s.Helper()
	var address string
	Eventually(s, deadline, "the address of the Gateway "+name, func(context.Context) error {
		r := s.KResult("get", "gateway", name, "-o",
			`jsonpath={.status.conditions[?(@.type=="Programmed")].status} {.status.addresses[*].value}`)
		programmed, text, _ := strings.Cut(strings.TrimSpace(r.Out), " ")
		if address = text; programmed != "True" || text == "" {
			return fmt.Errorf("%q %s", r.Out, r.Err)
		}
		return nil
	})
	return address
}
