package cis

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
)

func kubeletAnonymous(n *Node) Verdict {
	switch {
	case n.Port.Unreached != "":
		return unknown("%s", n.Port.Unreached)
	case n.Port.Anonymous == 401:
		return pass("its pods without credentials: 401")
	}
	return fail("its pods without credentials: %d", n.Port.Anonymous)
}

func kubeletAuthorization(n *Node) Verdict {
	switch mode := n.Kubelet.Authorization.Mode; mode {
	case v1beta1.KubeletAuthorizationModeWebhook:
		return pass("Webhook")
	case "":
		return unknown("the kubelet of this version does not show its authorization")
	default:
		return fail("%s", mode)
	}
}

func kubeletAsks(n *Node) Verdict {
	switch {
	case n.Port.Unreached != "":
		return unknown("%s", n.Port.Unreached)
	case !n.Port.AsksForCertificate:
		return fail("clients are not asked for certificates")
	}
	return pass("clients are asked for certificates")
}

func noReadOnlyPort(n *Node) Verdict {
	switch n.ReadOnly.State {
	case PortOpen:
		return fail("port 10255 answers")
	case PortClosed:
		return pass("port 10255 is closed")
	}
	return n.ReadOnly.unknown(10255)
}

func proxyIsLocal(n *Node) Verdict {
	switch n.Proxy.State {
	case PortOpen:
		return fail("port 10249 answers at the node's address")
	case PortClosed:
		return pass("10249 is closed at the node's address")
	}
	return n.Proxy.unknown(10249)
}

func idleStreams(n *Node) Verdict {
	if d := n.Kubelet.StreamingConnectionIdleTimeout.Duration; d > 0 {
		return pass("after %s", d.Round(time.Second))
	}
	return fail("never")
}

func utilChains(n *Node) Verdict {
	if !ptr.Deref(n.Kubelet.MakeIPTablesUtilChains, true) {
		return fail("makeIPTablesUtilChains: false")
	}
	return none("the kubelet has no chains of iptables; the network keeps its rules in nftables")
}

func namedByCertificate(n *Node) Verdict {
	want := "system:node:" + n.Name
	switch {
	case n.Port.Unreached != "":
		return unknown("%s", n.Port.Unreached)
	case n.Port.Subject != want:
		return fail("the certificate is of %q, not %q", n.Port.Subject, want)
	}
	return pass("the certificate is of the Node's name")
}

func eventRate(n *Node) Verdict {
	if n.Kubelet.EventRecordQPS == nil {
		return unknown("the kubelet of this version does not show the rate")
	}
	switch rate := *n.Kubelet.EventRecordQPS; {
	case rate < 0:
		return fail("%d a second", rate)
	case rate == 0:
		return pass("no limit")
	default:
		return pass("%d a second", rate)
	}
}

func kubeletServesTLS(n *Node) Verdict {
	switch {
	case n.Port.Unreached != "":
		return unknown("%s", n.Port.Unreached)
	case n.Port.Plain || !n.Port.Verified:
		return fail("the certificate of %s is not of the cluster's CA", n.Port.Subject)
	}
	return pass("certificate of %s", n.Port.Subject)
}

func rotates(n *Node) Verdict {
	if !n.Kubelet.RotateCertificates {
		return fail("rotateCertificates: false")
	}
	return pass("both are renewed")
}

func pidLimit(n *Node) Verdict {
	if limit := ptr.Deref(n.Kubelet.PodPidsLimit, -1); limit > 0 {
		return pass("%d", limit)
	}
	return fail("no limit")
}

func seccompDefault(n *Node) Verdict {
	if !ptr.Deref(n.Kubelet.SeccompDefault, false) {
		return fail("pods without a profile are unconfined")
	}
	return pass("RuntimeDefault")
}

// hostProcess is about nodes with Windows.
func hostProcess(e *Evidence) Verdict {
	var unseen []string
	for i := range e.Nodes {
		switch n := &e.Nodes[i]; {
		case strings.EqualFold(n.OS, "windows"):
			return refuses(ProbeHostProcess)(e)
		case n.OS == "":
			unseen = append(unseen, n.Name)
		}
	}
	switch {
	case e.Objects == nil:
		return unknown("the API was not asked")
	case unseen != nil:
		return unknown("the system of %s is not known", some(unseen))
	}
	return none("no node has Windows")
}

// ownClients is about a server's certificates as a client. The one of the administrator's
// kubeconfig is of system:masters.
func ownClients(r *ServerReport) Verdict {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(r.Clients)) {
		if name != "admin" && slices.Contains(r.Clients[name], "system:masters") {
			found = append(found, "its certificate "+name)
		}
	}
	switch {
	case len(r.Clients) == 0:
		return unknown("the server does not report its certificates")
	case found != nil:
		return fail("%s", some(found))
	}
	return pass("none of its own")
}

// masters is about the group system:masters, and the binding that gives everything like it.
func masters(e *Evidence) Verdict {
	return both(reports(func(r *ServerReport) Verdict {
		if v := controllersAccounts(r); v.Status != Pass {
			return Verdict{Status: v.Status, Reason: "the controllers: " + v.Reason}
		}
		return ownClients(r)
	}), ofRoles(boundMasters))(e)
}

func boundMasters(o *Objects, d *Defaults) Verdict {
	var found []string
	for _, b := range o.bindings() {
		for _, s := range b.beyond(d) {
			switch {
			case s.Kind == rbacv1.GroupKind && s.Name == mastersGroup:
				found = append(found, b.String())
			case b.namespace == "" && b.name == adminRole:
				found = append(found, fmt.Sprintf("%s: %s", b, subject(s)))
			}
		}
	}
	if slices.Contains(o.Mine, mastersGroup) {
		found = append(found, "the administrator's kubeconfig, with which this was asked")
	}
	if found == nil {
		return pass("nobody is seen in it")
	}
	return person("%s", some(found))
}
