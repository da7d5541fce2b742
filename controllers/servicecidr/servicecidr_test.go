package servicecidr

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/controllertest"
)

func newCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// going is a ServiceCIDR that is being deleted.
func going(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	c := newCIDR(name, cidrs...)
	c.Finalizers, c.DeletionTimestamp = []string{finalizer}, &metav1.Time{Time: time.Unix(0, 0)}
	return c
}

func newIP(name string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{networkingv1.LabelManagedBy: managedBy}}}
}

func conditioned(c *networkingv1.ServiceCIDR, condition metav1.Condition) *networkingv1.ServiceCIDR {
	meta.SetStatusCondition(&c.Status.Conditions, condition)
	return c
}

func TestDecide(t *testing.T) {
	protected := newCIDR("c", "10.0.0.0/24")
	protected.Finalizers = []string{finalizer}
	_, ready := decide(newCIDR("c"), nil, nil)
	_, blocked := decide(going("c", "10.0.0.0/24"), nil, []*networkingv1.IPAddress{newIP("10.0.0.1")})
	foreign := newIP("10.0.0.1")
	foreign.Labels = nil
	for name, c := range map[string]struct {
		cidr   *networkingv1.ServiceCIDR
		others []*networkingv1.ServiceCIDR
		ips    []*networkingv1.IPAddress
		want   action
	}{
		"new":       {newCIDR("c", "10.0.0.0/24"), nil, nil, protect},
		"protected": {protected, nil, nil, tell},
		"ready":     {conditioned(protected.DeepCopy(), ready), nil, nil, nothing},
		"unready":   {conditioned(protected.DeepCopy(), blocked), nil, nil, tell},
		"unused": {going("c", "10.0.0.0/24"), nil,
			[]*networkingv1.IPAddress{newIP("10.0.1.1"), newIP("fd00::1")}, release},
		"used": {going("c", "10.0.0.0/24"), nil, []*networkingv1.IPAddress{newIP("10.0.0.1")}, tell},
		"used, and told": {conditioned(going("c", "10.0.0.0/24"), blocked), nil,
			[]*networkingv1.IPAddress{newIP("10.0.0.1")}, nothing},
		"used in IPv6": {going("c", "10.0.0.0/24", "fd00::/112"), nil,
			[]*networkingv1.IPAddress{newIP("fd00::1")}, tell},
		"used by somebody else": {going("c", "10.0.0.0/24"), nil, []*networkingv1.IPAddress{foreign}, release},
		"in a larger one": {going("c", "10.0.0.0/24"), []*networkingv1.ServiceCIDR{newCIDR("d", "10.0.0.0/16")},
			[]*networkingv1.IPAddress{newIP("10.0.0.1")}, release},
		"in a smaller one": {going("c", "10.0.0.0/24"), []*networkingv1.ServiceCIDR{newCIDR("d", "10.0.0.0/28")},
			[]*networkingv1.IPAddress{newIP("10.0.0.1")}, release},
		"beyond a smaller one": {going("c", "10.0.0.0/24"), []*networkingv1.ServiceCIDR{newCIDR("d", "10.0.0.0/28")},
			[]*networkingv1.IPAddress{newIP("10.0.0.99")}, tell},
		"broadcast of a smaller": {going("c", "10.0.0.0/24"), []*networkingv1.ServiceCIDR{newCIDR("d", "10.0.0.0/28")},
			[]*networkingv1.IPAddress{newIP("10.0.0.15")}, tell},
		"without finalizer": {func() *networkingv1.ServiceCIDR {
			c := going("c", "10.0.0.0/24")
			c.Finalizers = []string{"example.com/f"}
			return c
		}(), nil, []*networkingv1.IPAddress{newIP("10.0.0.1")}, nothing},
	} {
		if got, _ := decide(c.cidr, c.others, c.ips); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func start(t *testing.T, c *controllertest.Cluster) {
	t.Helper()
	ctrl, err := New(Config{Informers: c.Informers})
	if err != nil {
		t.Fatal(err)
	}
	c.Start(ctrl.Run)
}

func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, newCIDR("c", "10.0.0.0/24"), newIP("10.0.0.1"))
		start(t, c)
		cidrs, ips := c.Client.NetworkingV1().ServiceCIDRs(), c.Client.NetworkingV1().IPAddresses()
		condition := func() *metav1.Condition {
			is, err := cidrs.Get(t.Context(), "c", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return meta.FindStatusCondition(is.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
		}
		synctest.Wait()
		controllertest.Eventually(t, "it is ready",
			func() bool { r := condition(); return r != nil && r.Status == metav1.ConditionTrue })
		is, err := cidrs.Get(t.Context(), "c", metav1.GetOptions{})
		if err != nil || !slices.Equal(is.Finalizers, []string{finalizer}) {
			t.Errorf("finalizers %v, %v", is.Finalizers, err)
		}
		if err := cidrs.Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "it tells why it stays",
			func() bool { return condition().Reason == networkingv1.ServiceCIDRReasonTerminating })
		if err := ips.Delete(t.Context(), "10.0.0.1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "it goes with its last address", func() bool {
			_, err := cidrs.Get(t.Context(), "c", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	})
}

// After any creations and deletions, no address is left without a ServiceCIDR, all that may be
// deleted are, and then nothing more is written.
func TestConverges(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			c := controllertest.New(t)
			prefixes := []string{"10.0.0.0/24", "10.0.0.0/24", "10.0.0.0/28", "10.0.0.128/25", "10.0.1.0/24"}
			for i, p := range prefixes {
				c.Add(newCIDR(fmt.Sprint("c", i), p))
			}
			var addresses []string
			for range 6 {
				a := fmt.Sprintf("10.0.%d.%d", rng.IntN(2), 1+rng.IntN(254))
				if !slices.Contains(addresses, a) {
					addresses = append(addresses, a)
					c.Add(newIP(a))
				}
			}
			start(t, c)
			cidrs, ips := c.Client.NetworkingV1().ServiceCIDRs(), c.Client.NetworkingV1().IPAddresses()
			synctest.Wait()
			<-time.After(time.Second)
			for range 12 {
				if rng.IntN(3) > 0 {
					_ = cidrs.Delete(t.Context(), fmt.Sprint("c", rng.IntN(len(prefixes))), metav1.DeleteOptions{})
				} else {
					_ = ips.Delete(t.Context(), addresses[rng.IntN(len(addresses))], metav1.DeleteOptions{})
				}
				<-time.After(time.Duration(rng.IntN(30)) * time.Millisecond)
			}
			<-time.After(5 * time.Minute) // past all back-off
			left, err := cidrs.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			there, err := ips.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range pointers(there.Items) {
				if !needsAny(a, pointers(left.Items)) {
					t.Errorf("seed %d: %s is in no ServiceCIDR", seed, a.Name)
				}
			}
			for _, cidr := range pointers(left.Items) {
				if do, _ := decide(cidr, except(pointers(left.Items), cidr), pointers(there.Items)); do != nothing {
					t.Errorf("seed %d: %s still needs %d", seed, cidr.Name, do)
				}
			}
			c.Client.ClearActions()
			<-time.After(time.Hour)
			for _, a := range c.Client.Actions() {
				if a.GetVerb() != "list" && a.GetVerb() != "watch" && a.GetVerb() != "get" {
					t.Errorf("seed %d: %s of %s although nothing happens", seed, a.GetVerb(), a.GetResource().Resource)
				}
			}
		})
	}
}

// needsAny reports whether some ServiceCIDR has the address.
func needsAny(a *networkingv1.IPAddress, cidrs []*networkingv1.ServiceCIDR) bool {
	return slices.ContainsFunc(cidrs, func(c *networkingv1.ServiceCIDR) bool { return needs(a, c, nil) })
}
