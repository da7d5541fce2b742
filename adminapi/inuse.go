package adminapi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/pki"
)

// Held is a certificate that a member has in use.
type Held struct {
	Node, Role  string
	Certificate credentials.CertificateInfo
}

// commonName is that of the subject, of which it is the first part.
func (h *Held) commonName() string {
	name, _, _ := strings.Cut(strings.TrimPrefix(h.Certificate.Subject, "CN="), ",")
	return name
}

// administrators reports whether people have the certificate, and no part of the cluster needs it.
func (h *Held) administrators() bool {
	return h.Role == pki.RoleServer && h.Certificate.Name == credentials.AdminName
}

// Find looks for a certificate among those that the members have. It asks them all. silent are
// those that do not say which they have.
func (s *Certificates) Find(ctx context.Context, serial string) (held *Held, silent []string) {
	nodes := s.certificates(ctx).Nodes
	for _, n := range nodes {
		knows := n.Problem == "" && n.Role == pki.RoleServer
		for _, c := range n.Certificates {
			if c.Serial != "" && revocation.ParseSerial(c.Serial) == serial {
				return &Held{n.Node, n.Role, c}, nil
			}
			knows = knows || n.Problem == "" && c.Serial != "" // the credential for gossip has none
		}
		if !knows {
			silent = append(silent, n.Node)
		}
	}
	if s.Agents != nil {
		for _, name := range s.Agents() {
			if !slices.ContainsFunc(nodes, func(n credentials.NodeCertificates) bool { return n.Node == name }) {
				silent = append(silent, name)
			}
		}
	}
	slices.Sort(silent)
	return nil, silent
}

// IsCA reports whether a CA that is believed has the serial number.
func (s *Certificates) IsCA(serial string) bool {
	return slices.ContainsFunc(s.Trust.EveryCA(),
		func(ca *pki.Authority) bool { return revocation.SerialOf(ca.Certificate()) == serial })
}

// Serials returns the serial numbers of an agent's certificates, as far as it answers.
func (s *Certificates) Serials(ctx context.Context, agent string) (serials []string) {
	for _, m := range s.Pool.Members() {
		if m.Name != agent || m.Role == pki.RoleServer {
			continue
		}
		for _, c := range s.certificatesOfAgent(ctx, m, time.Now()).Certificates {
			if c.Serial != "" {
				serials = append(serials, revocation.ParseSerial(c.Serial))
			}
		}
	}
	return serials
}

// MarkRevoked adds a warning with the way out to the certificates of a member that are revoked.
func MarkRevoked(n *credentials.NodeCertificates, entries *revocation.Entries) {
	for i := range n.Certificates {
		c := &n.Certificates[i]
		if c.Serial == "" {
			continue
		}
		is := entries.Serial(revocation.ParseSerial(c.Serial))
		if is == nil {
			continue
		}
		c.Warning = fmt.Sprintf("it is revoked since %s: `barque cert rotate --server %s` makes a new one",
			is.At.UTC().Format(time.RFC3339), n.Node)
		switch {
		case n.Role == pki.RoleServer:
		case is.Name == pki.NodeUser+n.Node:
			c.Warning = fmt.Sprintf("it is revoked since %s: `barque cert readmit %s` lets the agent in again",
				is.At.UTC().Format(time.RFC3339), n.Node)
		default: // nothing but the agent's word says that the certificate is its own
			c.Warning = fmt.Sprintf("it is revoked since %s: let the agent join again with a new token and --rejoin",
				is.At.UTC().Format(time.RFC3339))
		}
	}
}
