package nodeipam

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/controllertest"
)

func TestFree(t *testing.T) {
	for _, c := range []struct {
		cluster string
		bits    int
		used    []string
		want    string
	}{
		{"10.42.0.0/16", 24, nil, "10.42.0.0/24"},
		{"10.42.0.0/16", 24, []string{"10.42.0.0/24", "10.42.2.0/24"}, "10.42.1.0/24"},
		{"10.42.0.0/16", 24, []string{"10.42.0.0/23"}, "10.42.2.0/24"},   // larger than a block
		{"10.42.0.0/16", 24, []string{"10.42.0.128/25"}, "10.42.1.0/24"}, // smaller
		{"10.42.0.0/16", 24, []string{"10.0.0.0/8"}, ""},
		{"10.42.0.0/16", 24, []string{"10.43.0.0/24"}, "10.42.0.0/24"}, // elsewhere
		{"10.42.0.0/31", 32, []string{"10.42.0.0/32", "10.42.0.1/32"}, ""},
		{"10.42.4.0/22", 24, []string{"10.42.4.0/24"}, "10.42.5.0/24"},
		{"fd00:42::/48", 64, []string{"fd00:42::/64"}, "fd00:42:0:1::/64"},
	} {
		var used []netip.Prefix
		for _, u := range c.used {
			used = append(used, netip.MustParsePrefix(u))
		}
		got, ok := free(netip.MustParsePrefix(c.cluster), c.bits, used)
		if ok != (c.want != "") || (ok && got.String() != c.want) {
			t.Errorf("%s without %v: got %v (%v), want %q", c.cluster, c.used, got, ok, c.want)
		}
	}
}

// Blocks that are taken and given back in any order never overlap and all get used.
func TestFreeProperties(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 4))
		cluster := netip.MustParsePrefix([]string{"10.42.0.0/20", "fd00:1:2:30::/60"}[seed%2])
		bits := cluster.Bits() + 4
		var used []netip.Prefix
		for range 100 {
			if len(used) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(used))
				used = append(used[:i], used[i+1:]...)
				continue
			}
			p, ok := free(cluster, bits, used)
			if ok != (len(used) < 16) {
				t.Fatalf("seed %d: %d of 16 blocks used, got %v", seed, len(used), ok)
			}
			if !ok {
				continue
			}
			if p.Bits() != bits || p != p.Masked() || !cluster.Contains(p.Addr()) {
				t.Fatalf("seed %d: %s is no block of %s", seed, p, cluster)
			}
			for _, u := range used {
				if u.Overlaps(p) {
					t.Fatalf("seed %d: %s overlaps %s", seed, p, u)
				}
			}
			used = append(used, p)
		}
	}
}

func TestEveryNodeGetsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "old"},
			Spec:       corev1.NodeSpec{PodCIDR: "10.42.1.0/24", PodCIDRs: []string{"10.42.1.0/24"}},
		})
		ctrl, err := New(Config{Informers: c.Informers, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd00:42::/48")}})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		for i := range 20 {
			_, err := c.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		var nodes *corev1.NodeList
		controllertest.Eventually(t, "all nodes have blocks", func() bool {
			nodes, err = c.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			for _, n := range nodes.Items {
				if len(n.Spec.PodCIDRs) == 0 {
					return false
				}
			}
			return err == nil
		})
		seen := map[string]string{}
		for _, n := range nodes.Items {
			if n.Spec.PodCIDR != n.Spec.PodCIDRs[0] || (n.Name != "old" && len(n.Spec.PodCIDRs) != 2) {
				t.Errorf("%s has %s and %v", n.Name, n.Spec.PodCIDR, n.Spec.PodCIDRs)
			}
			for _, b := range n.Spec.PodCIDRs {
				if other, twice := seen[b]; twice {
					t.Errorf("%s has %s and so has %s", n.Name, b, other)
				}
				seen[b] = n.Name
			}
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	for _, cidr := range []string{"10.42.0.0/25", "fd00::/40"} {
		if _, err := New(Config{Informers: controllertest.New(t).Informers, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)}}); err == nil {
			t.Errorf("%s was accepted", cidr)
		}
	}
}
