package nodeipam

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
		ctrl, err := New(
			Config{Informers: c.Informers,
				ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"),
					netip.MustParsePrefix("fd00:42::/48")}})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		for i := range 20 {
			_, err := c.Client.CoreV1().Nodes().Create(t.Context(),
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}, metav1.CreateOptions{})
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

// TestNoBlockIsFree: Nodes without a block cost one event each and one warning in all, also over
// many changes. They get the blocks of removed Nodes.
func TestNoBlockIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t)
		logged := &counter{}
		ctrl, err := New(
			Config{Informers: c.Informers, Logger: slog.New(logged),
				ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/22")}})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		nodes := c.Client.CoreV1().Nodes()
		const blocks, surplus = 4, 10
		for i := range blocks + surplus {
			if _, err := nodes.Create(t.Context(),
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}},
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		without := func() (names []string) {
			list, err := nodes.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range list.Items {
				if len(n.Spec.PodCIDRs) == 0 {
					names = append(names, n.Name)
				}
			}
			return names
		}
		controllertest.Eventually(t, "all blocks are given", func() bool { return len(without()) == surplus })
		// Kubelets update their Nodes all the time.
		for i := range 60 {
			for _, name := range without() {
				patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"beat":"%d"}}}`, i)
				if _, err := nodes.Patch(t.Context(), name, types.MergePatchType, patch,
					metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			<-time.After(10 * time.Second)
			synctest.Wait()
		}
		if n := logged.warnings.Load(); n != 1 {
			t.Errorf("%d warnings in ten minutes, want 1", n)
		}
		events, err := c.Client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		told := map[string]int32{}
		for _, e := range events.Items {
			if e.Reason == "CIDRNotAvailable" {
				told[e.InvolvedObject.Name] += max(e.Count, 1)
			}
		}
		for _, name := range without() {
			if told[name] != 1 {
				t.Errorf("node %s has %d events, want 1", name, told[name])
			}
		}
		for _, gone := range []string{"n0", "n1"} {
			if err := nodes.Delete(t.Context(), gone, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		controllertest.Eventually(t, "two of the waiting nodes have got the blocks",
			func() bool { return len(without()) == surplus-2 })
	})
}

// counter is a log that counts.
type counter struct{ warnings atomic.Int32 }

func (c *counter) Enabled(context.Context, slog.Level) bool { return true }

func (c *counter) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		c.warnings.Add(1)
	}
	return nil
}

func (c *counter) WithAttrs([]slog.Attr) slog.Handler { return c }

func (c *counter) WithGroup(string) slog.Handler { return c }

func TestConfigIsChecked(t *testing.T) {
	for _, cidr := range []string{"10.42.0.0/25", "fd00::/40"} {
		if _, err := New(
			Config{Informers: controllertest.New(t).Informers,
				ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)}}); err == nil {
			t.Errorf("%s was accepted", cidr)
		}
	}
}
