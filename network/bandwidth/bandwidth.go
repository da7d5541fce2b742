// Package bandwidth limits the traffic of pods, by their annotations
// kubernetes.io/ingress-bandwidth and kubernetes.io/egress-bandwidth.
//
// Packets to a pod leave the node by the node's end of the pod's link, which has a token bucket.
// Packets from the pod come in there, and are redirected through a separate interface (ifb) with
// the bucket: the kernel only shapes outgoing packets. The package owns the interfaces whose names
// begin with "bqifb", and the queueing disciplines of limited pods' links. Everything happens in
// the network namespace of the calling thread.
package bandwidth

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/barque/barque/internal/netdump"
)

// The annotations, whose values are bits per second.
const (
	ingressAnnotation = "kubernetes.io/ingress-bandwidth"
	egressAnnotation  = "kubernetes.io/egress-bandwidth"
)

// Limits of a pod in bits per second; 0 is none.
type Limits struct{ Ingress, Egress uint64 }

var smallest, largest = resource.MustParse("1k"), resource.MustParse("1P")

// LimitsOf reads the annotations of a pod.
func LimitsOf(pod *corev1.Pod) (Limits, error) {
	var l Limits
	for name, into := range map[string]*uint64{ingressAnnotation: &l.Ingress, egressAnnotation: &l.Egress} {
		text, ok := pod.Annotations[name]
		if !ok {
			continue
		}
		limit, err := resource.ParseQuantity(text)
		switch {
		case err != nil:
			return Limits{}, fmt.Errorf("annotation %s: %w", name, err)
		case limit.Cmp(smallest) < 0:
			return Limits{}, fmt.Errorf("annotation %s: resource is unreasonably small (< 1kbit)", name)
		case limit.Cmp(largest) > 0:
			return Limits{}, fmt.Errorf("annotation %s: resource is unreasonably large (> 1Pbit)", name)
		}
		*into = uint64(limit.Value())
	}
	return l, nil
}

// prefix of the names of our interfaces.
const prefix = "bqifb"

// Apply limits the pod with the address. A pod without limits costs nothing.
func Apply(addr netip.Addr, l Limits) error {
	if l == (Limits{}) {
		return nil
	}
	link, err := linkOf(addr)
	if err != nil {
		return fmt.Errorf("bandwidth of the pod at %v: %w", addr, err)
	}
	if l.Ingress > 0 {
		err = shape(link, l.Ingress)
	}
	if l.Egress > 0 {
		err = errors.Join(err, divert(link, l.Egress))
	}
	if err != nil {
		return fmt.Errorf(
			"bandwidth of the pod at %v (the kernel needs CONFIG_NET_SCH_TBF, NET_SCH_INGRESS, IFB, NET_CLS_U32 and NET_ACT_MIRRED): %w", addr, err)
	}
	return nil
}

// linkOf returns the node's end of a pod's link.
func linkOf(addr netip.Addr) (netlink.Link, error) {
	routes, err := netlink.RouteGet(addr.AsSlice())
	if err != nil {
		return nil, fmt.Errorf("look for its route: %w", err)
	}
	for _, route := range routes {
		link, err := netlink.LinkByIndex(route.LinkIndex)
		if err != nil {
			return nil, err
		}
		if link.Type() == "veth" && len(route.Gw) == 0 {
			return link, nil
		}
	}
	return nil, errors.New("no link of this node leads to it")
}

// bucketTime is the size of the bucket as a time at the rate.
const bucketTime = 10 // of a second

// smallestBucket holds the largest packet that the kernel hands over as one.
const smallestBucket = 64 << 10

// waitingTime is how long packets wait before they are dropped, as a part of a second.
const waitingTime = 40

// shape limits a link's outgoing packets to a rate in bits per second.
func shape(link netlink.Link, bits uint64) error {
	rate := bits / 8
	bucket := max(rate/bucketTime, smallestBucket)
	tick := netlink.TickInUsec()
	qdisc := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0),
			Parent: netlink.HANDLE_ROOT},
		Rate:   rate,
		Limit:  clamp(float64(bucket) + float64(rate)/waitingTime),
		Buffer: clamp(float64(bucket) / float64(rate) * netlink.TIME_UNITS_PER_SEC * tick),
	}
	if err := netlink.QdiscReplace(qdisc); err != nil {
		return fmt.Errorf("hold %s to %d bits per second: %w", link.Attrs().Name, bits, err)
	}
	return nil
}

// clamp limits a number to the kernel's range.
func clamp(number float64) uint32 {
	const most = 1<<32 - 1
	if number >= most {
		return most
	}
	return uint32(number)
}

// nameOf makes the name of the interface that goes with a link.
func nameOf(link string) string {
	sum := sha256.Sum256([]byte(link))
	return prefix + hex.EncodeToString(sum[:5])
}

// divert redirects a link's incoming packets through an interface that limits them to a rate.
func divert(link netlink.Link, bits uint64) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Alias = nameOf(link.Attrs().Name), link.Attrs().MTU, link.Attrs().Name
	if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make the interface %s: %w", attrs.Name, err)
	}
	through, err := netlink.LinkByName(attrs.Name)
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetAlias(through, attrs.Alias), shape(through, bits),
		netlink.LinkSetUp(through)); err != nil {
		return err
	}
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}
	if err := netlink.QdiscAdd(ingress); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("look at what comes in by %s: %w", link.Attrs().Name, err)
	}
	there, err := netdump.Whole(func() ([]netlink.Filter, error) { return netlink.FilterList(link, ingress.Handle) })
	if err != nil || len(there) > 0 {
		return err
	}
	err = netlink.FilterAdd(&netlink.U32{ // without a selector it matches every packet
		FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: ingress.Handle, Priority: 1,
			Protocol: unix.ETH_P_ALL},
		Actions: []netlink.Action{netlink.NewMirredAction(through.Attrs().Index)},
	})
	if err != nil {
		return fmt.Errorf("lead what comes in by %s through %s: %w", link.Attrs().Name, attrs.Name, err)
	}
	return nil
}

// Clean removes the interfaces of links that are gone.
func Clean() error {
	return remove(func(of string) bool {
		_, err := netlink.LinkByName(of)
		var missing netlink.LinkNotFoundError
		return errors.As(err, &missing)
	})
}

// Purge removes all interfaces. The buckets of packets to pods are removed with their links.
func Purge() error { return remove(func(string) bool { return true }) }

// Found returns the names of the interfaces.
func Found() ([]string, error) {
	links, err := interfaces()
	var names []string
	for _, link := range links {
		names = append(names, link.Attrs().Name)
	}
	return names, err
}

func interfaces() ([]netlink.Link, error) {
	links, err := netdump.Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("bandwidth: list links: %w", err)
	}
	return slices.DeleteFunc(links, func(l netlink.Link) bool {
		return !strings.HasPrefix(l.Attrs().Name, prefix) || l.Type() != "ifb"
	}), nil
}

func remove(which func(of string) bool) error {
	links, err := interfaces()
	if err != nil {
		return err
	}
	var failed error
	for _, link := range links {
		if !which(link.Attrs().Alias) {
			continue
		}
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			failed = errors.Join(failed, fmt.Errorf("bandwidth: remove %s: %w", link.Attrs().Name, err))
		}
	}
	return failed
}
