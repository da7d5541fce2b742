package join_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/netip"
	"testing"

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

func peer(r pki.Request) tls.ConnectionState {
	return tls.ConnectionState{
		PeerCertificates: []*x509.Certificate{
			{Subject: pkix.Name{CommonName: r.CommonName, Organization: r.Organization}, DNSNames: r.Names}}}
}

// TestIdentitiesOfPeers: a certificate of the cluster's CA with the right address is not enough.
func TestIdentitiesOfPeers(t *testing.T) {
	address := netip.MustParseAddr("10.0.0.7")
	for name, c := range map[string]struct {
		peer                     tls.ConnectionState
		server, kubelet, foreign bool
	}{
		"the node itself":             {peer(join.NodeServing("a1", address)), false, true, true},
		"another node at its address": {peer(join.NodeServing("b1", address)), false, false, false},
		"an API server": {
			peer(pki.Request{CommonName: "barque:apiserver", Organization: []string{join.ServersOrganization}}), true,
			false, false},
		"a server, to other servers": {
			peer(pki.Request{CommonName: "a1", Organization: []string{join.ServersOrganization}}), true, false, false},
		"a component of the cluster": {peer(pki.Request{CommonName: "system:kube-scheduler"}), false, false, false},
		"the node's name, of no node": {
			peer(pki.Request{CommonName: "system:node:a1", Organization: []string{"example"}}), false, false, false},
		"a program for many nodes": {
			peer(pki.Request{CommonName: "kwok", Organization: []string{"example"}, Names: []string{"b1", "A1"}}),
			false, false, true},
		"a program for other nodes": {
			peer(pki.Request{CommonName: "kwok", Names: []string{"b1", "a1.example", "*", "10.0.0.7"}}), false, false,
			false},
		"a program without names": {peer(pki.Request{CommonName: "kwok", Organization: []string{"example"}}),
			false, false, false},
		"the name without its prefix": {peer(pki.Request{CommonName: "a1"}), false, false, false},
		"a server with the name": {
			peer(
				pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization}, Names: []string{"a1"}}),
			true, false, false},
		"another node with the name": {
			peer(
				pki.Request{CommonName: "system:node:b1", Organization: []string{"system:nodes"},
					Names: []string{"a1"}}), false, false, false},
		"a peer without a certificate": {tls.ConnectionState{}, false, false, false},
	} {
		for check, got := range map[string]struct {
			err  error
			want bool
		}{
			"IsServer":         {join.IsServer(c.peer), c.server},
			"IsKubelet":        {join.IsKubelet("a1", c.peer), c.kubelet},
			"IsForeignKubelet": {join.IsForeignKubelet("a1", c.peer), c.foreign},
		} {
			if (got.err == nil) != got.want {
				t.Errorf("%s: %s: %v", name, check, got.err)
			}
		}
	}
}
