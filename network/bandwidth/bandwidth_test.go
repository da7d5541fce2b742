package bandwidth

import (
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/apart"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/network/nodeaddr"
)

func TestLimitsOf(t *testing.T) {
	for _, c := range []struct {
		ingress, egress string
		want            Limits
		fails           string
	}{
		{"", "", Limits{}, ""},
		{"10M", "", Limits{Ingress: 10_000_000}, ""},
		{"1Gi", "1k", Limits{Ingress: 1 << 30, Egress: 1000}, ""},
		{"", "10", Limits{}, "kubernetes.io/egress-bandwidth: resource is unreasonably small (< 1kbit)"},
		{"2P", "", Limits{}, "unreasonably large (> 1Pbit)"},
		{"fast", "", Limits{}, "kubernetes.io/ingress-bandwidth"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
		for name, text := range map[string]string{ingressAnnotation: c.ingress, egressAnnotation: c.egress} {
			if text != "" {
				pod.Annotations[name] = text
			}
		}
		got, err := LimitsOf(pod)
		if got != c.want || (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%q, %q: got %v, %v", c.ingress, c.egress, got, err)
		}
	}
}

// rate returns that of a link's bucket in bits per second; 0 without one.
func rate(t *testing.T, link netlink.Link) uint64 {
	t.Helper()
	qdiscs, err := netlink.QdiscList(link)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range qdiscs {
		if tbf, ok := q.(*netlink.Tbf); ok {
			return tbf.Rate * 8
		}
	}
	return 0
}

func TestApply(t *testing.T) {
	if !apart.Run(t, apart.Network, await.Hang, "limits of what pods send and receive") {
		return
	}
	runtime.LockOSThread()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "veth1"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "pod"}))
	link, err := netlink.LinkByName("veth1")
	must(err)
	must(netlink.LinkSetUp(link))
	addr := netip.MustParseAddr("10.42.1.2")
	must(
		netlink.RouteAdd(
			&netlink.Route{LinkIndex: link.Attrs().Index, Dst: nodeaddr.IPNet(netip.PrefixFrom(addr, 32)),
				Scope: netlink.SCOPE_LINK}))

	must(Apply(addr, Limits{}))
	if got := rate(t, link); got != 0 {
		t.Errorf("without limits: %d", got)
	}
	for range 2 {
		must(Apply(addr, Limits{Ingress: 8_000_000, Egress: 16_000_000}))
		if got := rate(t, link); got != 8_000_000 {
			t.Errorf("ingress %d", got)
		}
		through, err := netlink.LinkByName(nameOf("veth1"))
		must(err)
		if got := rate(t, through); got != 16_000_000 {
			t.Errorf("egress %d", got)
		}
		filters, err := netlink.FilterList(link, netlink.MakeHandle(0xffff, 0))
		must(err)
		led := 0
		for _, filter := range filters {
			if u32, ok := filter.(*netlink.U32); ok && len(u32.Actions) == 1 &&
				u32.Actions[0].(*netlink.MirredAction).Ifindex == through.Attrs().Index {
				led++
			}
		}
		if led != 1 {
			t.Errorf("%d filters lead through it: %v", led, filters)
		}
		must(Clean()) // the link is there
	}
	must(Apply(addr, Limits{Ingress: 1_000_000_000_000_000})) // more than fits into 32 bits
	must(netlink.LinkDel(link))
	must(Clean())
	if _, err := netlink.LinkByName(nameOf("veth1")); err == nil {
		t.Error("the interface of a link that has gone is left")
	}
	if err := Apply(addr, Limits{Ingress: 8_000_000}); err == nil {
		t.Error("a pod that is not there was limited")
	}
}
