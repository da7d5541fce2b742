package servicecidr

import (
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// These are upstream's, word by word: programs look for them.
const (
	finalizer      = "networking.k8s.io/service-cidr-finalizer"
	managedBy      = "ipallocator.k8s.io"
	readyMessage   = "Kubernetes Service CIDR is ready"
	blockedMessage = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
)

// action is the next change for a ServiceCIDR.
type action int

const (
	nothing action = iota
	protect        // put the finalizer on
	tell           // write the condition
	release        // take the finalizer off
)

// decide returns the next change for a ServiceCIDR, and the condition for tell. others are the
// remaining ServiceCIDRs.
func decide(
	cidr *networkingv1.ServiceCIDR, others []*networkingv1.ServiceCIDR, addresses []*networkingv1.IPAddress,
) (action, metav1.Condition) {
	protected := slices.Contains(cidr.Finalizers, finalizer)
	ready := metav1.Condition{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
		Message: readyMessage}
	switch {
	case cidr.DeletionTimestamp == nil && !protected:
		return protect, ready
	case cidr.DeletionTimestamp == nil:
		return told(cidr, ready)
	case !protected: // it goes when others let it
		return nothing, ready
	case !slices.ContainsFunc(addresses, func(a *networkingv1.IPAddress) bool { return needs(a, cidr, others) }):
		return release, ready
	}
	return told(cidr, metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionFalse,
		Reason: networkingv1.ServiceCIDRReasonTerminating, Message: blockedMessage,
	})
}

// told is nothing if the ServiceCIDR has the condition already. The API server marks the default
// one as ready, with another message.
func told(cidr *networkingv1.ServiceCIDR, want metav1.Condition) (action, metav1.Condition) {
	is := meta.FindStatusCondition(cidr.Status.Conditions, want.Type)
	if is != nil && is.Status == want.Status && is.Reason == want.Reason && is.Message == want.Message {
		return nothing, want
	}
	return tell, want
}

// needs reports whether an address of a Service is in a ServiceCIDR and in none of the others.
func needs(a *networkingv1.IPAddress, cidr *networkingv1.ServiceCIDR, others []*networkingv1.ServiceCIDR) bool {
	address, err := netip.ParseAddr(a.Name)
	if err != nil || a.Labels[networkingv1.LabelManagedBy] != managedBy || !contains(cidr, address) {
		return false
	}
	return !slices.ContainsFunc(others, func(o *networkingv1.ServiceCIDR) bool { return contains(o, address) })
}

// contains reports whether a ServiceCIDR gives out an address. None gives out that of its network,
// nor in IPv4 the broadcast address.
func contains(cidr *networkingv1.ServiceCIDR, a netip.Addr) bool {
	return slices.ContainsFunc(cidr.Spec.CIDRs, func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err == nil && p.Contains(a) && a != p.Masked().Addr() && (a.Is6() || p.Contains(a.Next()))
	})
}
