package node

import (
	"log/slog"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	crifake "github.com/barque/barque/kubelet/cri/fake"
)

func addresses(all ...string) []v1.NodeAddress {
	var out []v1.NodeAddress
	for i := 0; i < len(all); i += 2 {
		out = append(out, v1.NodeAddress{Type: v1.NodeAddressType(all[i]), Address: all[i+1]})
	}
	return out
}

// The addresses of a cloud's controller stay when the node's process starts anew, and when the
// controller writes them while the node looks at itself.
func TestKeepsAddressesOfTheCloud(t *testing.T) {
	own := addresses("InternalIP", "192.0.2.1", "Hostname", "n1")
	given := addresses("InternalIP", "192.0.2.1", "ExternalIP", "203.0.113.1", "InternalDNS", "n1", "Hostname", "n1")
	for name, known := range map[string][]v1.NodeAddress{"a start": nil, "a change meanwhile": own} {
		t.Run(name, func(t *testing.T) {
			there := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1.NodeStatus{Addresses: given}}
			client := fake.NewClientset(there)
			r, err := New(Config{Name: "n1", Hostname: "n1", IPs: []string{"192.0.2.1"}, ExternalCloud: true,
				RootDir: t.TempDir(), Version: "v1.37", Client: client,
				Runtime: crifake.New(), Images: crifake.New(), Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			if known != nil {
				r.learn(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1.NodeStatus{Addresses: known}})
			}
			wanted, err := r.wanted(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if known != nil {
				r.learn(there)
			}
			if err := r.write(t.Context(), wanted, false); err != nil {
				t.Fatal(err)
			}
			n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := n.Status.Addresses; !slices.Equal(got, given) {
				t.Errorf("the addresses are %v, want %v", got, given)
			}
			if len(n.Status.Conditions) == 0 {
				t.Error("the node has written no status")
			}
		})
	}
}

// A node of two families has two addresses of one type, which a merge by type mixes up.
func TestTwoInternalAddresses(t *testing.T) {
	for _, before := range [][]v1.NodeAddress{
		addresses("InternalIP", "192.0.2.8", "InternalIP", "2001:db8::8", "Hostname", "n1"),
		addresses("InternalIP", "192.0.2.1", "InternalIP", "2001:db8::8", "Hostname", "n1"),
		addresses("InternalIP", "192.0.2.1", "InternalIP", "2001:db8::1", "ExternalIP", "203.0.113.1",
			"Hostname", "n1"),
		addresses("InternalIP", "192.0.2.1", "Hostname", "n1"),
		addresses("Hostname", "n1", "InternalIP", "2001:db8::1", "InternalIP", "192.0.2.1"),
	} {
		client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
			Status: v1.NodeStatus{Addresses: before}})
		r, err := New(Config{Name: "n1", Hostname: "n1", IPs: []string{"192.0.2.1", "2001:db8::1"},
			RootDir: t.TempDir(), Version: "v1.37", Client: client,
			Runtime: crifake.New(), Images: crifake.New(), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		wanted, err := r.wanted(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.write(t.Context(), wanted, false); err != nil {
			t.Fatal(err)
		}
		n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := addresses("InternalIP", "192.0.2.1", "InternalIP", "2001:db8::1", "Hostname", "n1")
		if got := n.Status.Addresses; !slices.Equal(got, want) {
			t.Errorf("%v became %v, want %v", before, got, want)
		}
	}
}
