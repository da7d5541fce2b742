// Package nodename has the rules for the names and labels of nodes. The joining machine, the
// admitting server and the API server share them, so that an admitted node can register.
package nodename

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Check returns why a node cannot have the name. The name must be a valid value of the Node's label
// kubernetes.io/hostname.
func Check(name string) error {
	bad := validation.IsDNS1123Subdomain(name)
	if len(name) > validation.LabelValueMaxLength {
		bad = append(bad,
			fmt.Sprintf("must be no more than %d characters, and has %d: it is the value of the label %s",
				validation.LabelValueMaxLength, len(name), corev1.LabelHostname))
	}
	if len(bad) > 0 {
		return fmt.Errorf("node name %q: %s", name, strings.Join(bad, "; "))
	}
	return nil
}

// reserved is the domain of the labels that Barque itself sets.
const reserved = "barque.io"

// CheckLabel returns why a node cannot register with the label.
func CheckLabel(key, value string) error {
	if bad := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(bad) > 0 {
		return fmt.Errorf("label %q: %s", key+"="+value, strings.Join(bad, "; "))
	}
	switch domain, _, _ := strings.Cut(key, "/"); {
	case Restricted(key):
		return fmt.Errorf(
			"label %q: a node may not give it to itself: of the domains kubernetes.io and k8s.io it may have those of kubelet.kubernetes.io and node.kubernetes.io, and some that describe the machine. "+
				"Once it has joined, an administrator may: kubectl label node NAME %s=%s", key, key, value)
	case strings.Contains(key, "/") && within(domain, reserved):
		return fmt.Errorf("label %q: labels of the domain %s are Barque's own", key, reserved)
	}
	return nil
}

// Restricted reports whether a node may not set the label on itself: one under
// node-restriction.kubernetes.io, or one of kubernetes.io and k8s.io that is not the kubelet's.
func Restricted(key string) bool {
	domain, _, prefixed := strings.Cut(key, "/")
	return prefixed && !ofKubelet(key, domain) && (within(domain, "kubernetes.io") || within(domain, "k8s.io"))
}

func ofKubelet(key, domain string) bool {
	switch key {
	case corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable, corev1.LabelTopologyZone,
		corev1.LabelTopologyRegion,
		corev1.LabelInstanceTypeStable, corev1.LabelInstanceType, corev1.LabelFailureDomainBetaZone,
		corev1.LabelFailureDomainBetaRegion,
		"beta.kubernetes.io/os", "beta.kubernetes.io/arch":
		return true
	}
	return within(domain, "kubelet.kubernetes.io") || within(domain, "node.kubernetes.io")
}

func within(domain, parent string) bool {
	return domain == parent || strings.HasSuffix(domain, "."+parent)
}
