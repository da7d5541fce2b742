package bgp

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/edge/bgp/speaker"
)

// Definition is the CustomResourceDefinition of BGPPeers.
//
//go:embed bgppeer.yaml
var Definition []byte

// Resource is that of BGPPeers.
var Resource = schema.GroupVersionResource{Group: "edge.barque.io", Version: "v1", Resource: "bgppeers"}

// Object is a BGPPeer as users write it.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec `json:"spec"`
}

// Spec is described in the definition.
type Spec struct {
	Address            string                `json:"address"`
	Port               int32                 `json:"port,omitempty"`
	AS                 int64                 `json:"as"`
	LocalAS            int64                 `json:"localAS"`
	PasswordSecret     string                `json:"passwordSecret,omitempty"`
	HoldTimeSeconds    int32                 `json:"holdTimeSeconds,omitempty"`
	RestartTimeSeconds *int32                `json:"restartTimeSeconds,omitempty"`
	EBGPMultihop       int32                 `json:"ebgpMultihop,omitempty"`
	SourceAddress      string                `json:"sourceAddress,omitempty"`
	NodeSelector       *metav1.LabelSelector `json:"nodeSelector,omitempty"`
}

// The defaults of the definition, for objects that were written before a field was.
const (
	defaultPort, defaultHold, defaultRestart = 179, 9, 60
	// leastHold is BGP's own bound, and mostRestart the largest number of its field.
	leastHold, mostRestart = 3, 1<<12 - 1
)

// Secrets of passwords are in kube-system alone, and have this key.
const (
	SecretNamespace = metav1.NamespaceSystem
	SecretKey       = "password"
)

// peer is a BGPPeer that has been read.
type peer struct {
	speaker.Peer
	nodes  labels.Selector
	secret string // of the password; "" for none
	// fault is why there is no session.
	fault error
}

// read converts an object of the API.
func read(u *unstructured.Unstructured) (*Object, error) {
	var o Object
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
		return nil, fmt.Errorf("read the BGPPeer %s: %w", u.GetName(), err)
	}
	return &o, nil
}

// parse reads a spec. The definition refuses most of what is wrong; a user may have changed it.
func parse(o *Object) peer {
	s := &o.Spec
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	out := peer{nodes: labels.Everything(), secret: s.PasswordSecret}
	if s.NodeSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(s.NodeSelector)
		if err != nil {
			wrong("nodeSelector: %w", err)
		} else {
			out.nodes = selector
		}
	}
	address, err := netip.ParseAddr(s.Address)
	if err != nil || address.Zone() != "" || address.Is4In6() || !address.IsGlobalUnicast() {
		wrong("address: %q is not the address of another machine", s.Address)
	}
	port := cmp.Or(s.Port, defaultPort)
	if port < 1 || port > 65535 {
		wrong("port: %d is none", port)
	}
	for field, as := range map[string]int64{"as": s.AS, "localAS": s.LocalAS} {
		if as < 1 || as > 1<<32-2 {
			wrong("%s: %d is no number of an autonomous system", field, as)
		}
	}
	hold, restart := cmp.Or(s.HoldTimeSeconds, defaultHold), ptr.Deref(s.RestartTimeSeconds, defaultRestart)
	if hold < leastHold || hold > 65535 {
		wrong("holdTimeSeconds: %d is not between %d and 65535", hold, leastHold)
	}
	if restart < 0 || restart > mostRestart {
		wrong("restartTimeSeconds: %d is not between 0 and %d", restart, mostRestart)
	}
	if s.EBGPMultihop < 0 || s.EBGPMultihop > 255 || s.EBGPMultihop > 0 && s.AS == s.LocalAS {
		wrong("ebgpMultihop: %d; want up to 255 for a peer of another AS", s.EBGPMultihop)
	}
	var source netip.Addr
	if s.SourceAddress != "" {
		source, err = netip.ParseAddr(s.SourceAddress)
		if err != nil || source.Is4() != address.Is4() {
			wrong("sourceAddress: %q is no address of the family of %s", s.SourceAddress, s.Address)
		}
	}
	out.fault = errors.Join(errs...)
	out.Peer = speaker.Peer{
		Name: o.Name, Address: netip.AddrPortFrom(address, uint16(port)), AS: uint32(s.AS), LocalAS: uint32(s.LocalAS),
		HoldTime: time.Duration(hold) * time.Second, RestartTime: time.Duration(restart) * time.Second,
		TTL: int(s.EBGPMultihop), Source: source,
	}
	return out
}
