package node

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

const (
	// CertificatesPath: GET answers with the ClusterCertificates, with the parameter "of", the name
	// of a server, with that one's NodeCertificates only. POST with "of" makes that server renew
	// all of its certificates now, and answers with them; with 504 where it is not known whether it
	// did.
	CertificatesPath = "/barque/v1/certificates"
	// CAPath: GET answers with the exchange.Status. POST with the parameter "change", an
	// exchange.Change, makes that, for members of system:masters only.
	CAPath = "/barque/v1/ca"
)

// CertificateInfo is one certificate, or a credential for gossip.
type CertificateInfo struct {
	Name        string    `json:"name"` // what it is for
	Subject     string    `json:"subject"`
	Issuer      string    `json:"issuer"`
	Serial      string    `json:"serial,omitempty"`
	Names       []string  `json:"names,omitempty"` // DNS names and addresses
	NotBefore   time.Time `json:"notBefore,omitzero"`
	NotAfter    time.Time `json:"notAfter"`
	SecondsLeft int64     `json:"secondsLeft"` // negative: it has ended
	RenewAt     time.Time `json:"renewAt,omitzero"`
	File        string    `json:"file,omitempty"` // empty: in memory only
	Warning     string    `json:"warning,omitempty"`
}

// NodeCertificates are those of one node. What an agent does not tell of itself is its credential
// for gossip, which it has shown to all; it gets that together with its certificates, for the same
// time.
type NodeCertificates struct {
	Node         string            `json:"node"`
	Role         string            `json:"role"`
	Generation   uint64            `json:"generation"` // of the CAs that it has taken over
	Certificates []CertificateInfo `json:"certificates"`
	Problem      string            `json:"problem,omitempty"` // why they, or some of them, are not known
}

// ClusterCertificates are all, as one server knows them.
type ClusterCertificates struct {
	From     string             `json:"from"`
	CA       exchange.Status    `json:"ca"`
	CAs      []CertificateInfo  `json:"cas"` // that are believed; the first one issues
	Nodes    []NodeCertificates `json:"nodes"`
	Warnings []string           `json:"warnings,omitempty"`
}

// infoOf describes a certificate. One that is kept up is to be renewed in time.
func infoOf(name string, cert *x509.Certificate, keptUp bool, now time.Time) CertificateInfo {
	c := CertificateInfo{Name: name, Subject: cert.Subject.String(), Issuer: cert.Issuer.String(), Serial: cert.SerialNumber.Text(16),
		Names: cert.DNSNames, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter, SecondsLeft: int64(cert.NotAfter.Sub(now).Seconds())}
	for _, ip := range cert.IPAddresses {
		c.Names = append(c.Names, ip.String())
	}
	if keptUp {
		c.RenewAt = pki.TermOf(cert).Due()
	}
	return c
}

// ownCertificates describes this server's certificates.
func (s *server) ownCertificates() NodeCertificates {
	now := time.Now()
	proof := s.ids.proof.proof()
	n := NodeCertificates{Node: s.options.Name, Role: pki.RoleServer, Generation: proof.Trust}
	for _, i := range s.ids.all() {
		info := infoOf(i.Name(), i.Certificate().Leaf, true, now)
		if i == s.ids.admin {
			info.File = kubeconfigPath(s.options)
		}
		if overdue(info.RenewAt, info.NotAfter, now) {
			info.Warning = "it should have been renewed: see the log of this server, and renew it with `barque cert rotate --server " + s.options.Name + "`"
		}
		n.Certificates = append(n.Certificates, info)
	}
	if c, err := s.ids.trust.VerifyCredential(proof.Credential, now); err == nil || errors.Is(err, pki.ErrCredentialEnded) {
		n.Certificates = append(n.Certificates, s.credentialInfo(c.Name, c.NotAfter, c.Signer, now))
	}
	return n
}

// overdue tells that a certificate should have been renewed a while ago, by a tenth of the time
// that is left then.
func overdue(renewAt, notAfter, now time.Time) bool {
	return now.After(renewAt.Add(notAfter.Sub(renewAt) / 10))
}

func (s *server) credentialInfo(node string, notAfter time.Time, signer string, now time.Time) CertificateInfo {
	return CertificateInfo{Name: "gossip", Subject: "CN=" + node, Issuer: s.nameOfCA(signer), NotAfter: notAfter, SecondsLeft: int64(notAfter.Sub(now).Seconds())}
}

// nameOfCA is the subject of the CA with the digest.
func (s *server) nameOfCA(digest string) string {
	for _, ca := range s.ids.trust.CAs() {
		if ca.Digest() == digest {
			return ca.Certificate().Subject.String()
		}
	}
	return "another CA"
}

// certificates describes all certificates of the cluster. It asks the other servers.
func (s *server) certificates(ctx context.Context) ClusterCertificates {
	now := time.Now()
	all := ClusterCertificates{From: s.options.Name, CA: s.exchange.Status(), Nodes: []NodeCertificates{s.ownCertificates()}}
	for _, ca := range s.ids.trust.CAs() {
		info := infoOf("ca", ca.Certificate(), false, now)
		info.File = caFile(s.options.DataDir)
		if left := ca.Certificate().NotAfter.Sub(now); left < max(2*s.options.CertificateLifetime, 30*24*time.Hour) && all.CA.Step == pki.Settled {
			info.Warning = "it ends soon: exchange it with `barque cert rotate --ca`"
		}
		all.CAs = append(all.CAs, info)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, m := range s.store.Members() {
		if m.Name == s.options.Name {
			continue
		}
		wg.Go(func() {
			n := s.certificatesOf(ctx, m.Name)
			mu.Lock()
			defer mu.Unlock()
			all.Nodes = append(all.Nodes, n)
		})
	}
	wg.Go(func() {
		agents := s.agentCertificates(ctx, now)
		mu.Lock()
		defer mu.Unlock()
		all.Nodes = append(all.Nodes, agents...)
	})
	wg.Wait()
	slices.SortFunc(all.Nodes, func(a, b NodeCertificates) int {
		if a.Role != b.Role {
			return -strings.Compare(a.Role, b.Role) // servers first
		}
		return strings.Compare(a.Node, b.Node)
	})
	all.Warnings = all.warnings()
	return all
}

// warnings are what an operator should know.
func (c *ClusterCertificates) warnings() []string {
	var out []string
	for _, ca := range c.CAs {
		if ca.Warning != "" {
			out = append(out, fmt.Sprintf("the CA %s, which ends at %s: %s", ca.Subject, ca.NotAfter.UTC().Format(time.RFC3339), ca.Warning))
		}
	}
	for _, n := range c.Nodes {
		if n.Problem != "" {
			out = append(out, fmt.Sprintf("the certificates of %s %s are not known: %s", n.Role, n.Node, n.Problem))
		}
		for _, cert := range n.Certificates {
			if cert.Warning != "" {
				out = append(out, fmt.Sprintf("the certificate %q of %s %s, which ends at %s: %s", cert.Name, n.Role, n.Node, cert.NotAfter.UTC().Format(time.RFC3339), cert.Warning))
			}
		}
	}
	if c.CA.Step != pki.Settled {
		out = append(out, clusterstatus.ExchangeWarning(&c.CA))
	}
	if c.CA.Problem != "" {
		out = append(out, fmt.Sprintf("server %s: %s", c.From, c.CA.Problem))
	}
	return out
}

// certificatesOf asks another server for its own certificates.
func (s *server) certificatesOf(ctx context.Context, name string) NodeCertificates {
	var n NodeCertificates
	if err := s.callServer(ctx, http.MethodGet, name, CertificatesPath+"?of="+name, &n); err != nil {
		return NodeCertificates{Node: name, Role: pki.RoleServer, Problem: err.Error()}
	}
	return n
}

// addCertificateHandlers serves CertificatesPath and CAPath.
func (s *server) addCertificateHandlers(handlers map[string]http.Handler) {
	renew := adminapi.MastersOnly(http.MethodPost, s.serveRenewal)
	handlers[CertificatesPath] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch of := r.URL.Query().Get("of"); {
		case r.Method != http.MethodGet:
			renew.ServeHTTP(w, r)
		case of == "":
			adminapi.Answer(w, http.StatusOK, s.certificates(r.Context()))
		case of == s.options.Name:
			adminapi.Answer(w, http.StatusOK, s.ownCertificates())
		case s.isServer(of):
			adminapi.Answer(w, http.StatusOK, s.certificatesOf(r.Context(), of))
		default:
			http.Error(w, fmt.Sprintf("%q %v", of, adminapi.ErrNoMember), http.StatusNotFound)
		}
	})
	change := adminapi.MastersOnly(http.MethodPost, s.serveCAChange)
	handlers[CAPath] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			adminapi.Answer(w, http.StatusOK, s.exchange.Status())
			return
		}
		change.ServeHTTP(w, r)
	})
}

func (s *server) serveRenewal(w http.ResponseWriter, r *http.Request) {
	of := r.URL.Query().Get("of")
	n := NodeCertificates{Node: of, Role: pki.RoleServer}
	var err error
	switch {
	case of == s.options.Name:
		if err = s.ids.renew(r.Context()); err == nil {
			n = s.ownCertificates()
			s.logger.Info("certificates renewed, as an operator wanted")
		}
	case s.isServer(of):
		err = s.callServer(r.Context(), http.MethodPost, of, CertificatesPath+"?of="+of, &n)
	default:
		http.Error(w, fmt.Sprintf("%q %v", of, adminapi.ErrNoMember), http.StatusNotFound)
		return
	}
	switch {
	case errors.Is(err, adminapi.ErrOutcomeUnknown):
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		adminapi.Answer(w, http.StatusOK, n)
	}
}

func (s *server) serveCAChange(w http.ResponseWriter, r *http.Request) {
	status, err := s.exchange.Apply(r.Context(), exchange.Change(r.URL.Query().Get("change")))
	var conflict *raftstore.ConflictError
	switch {
	case err == nil:
		adminapi.Answer(w, http.StatusOK, status)
	case errors.Is(err, exchange.ErrChange):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case errors.Is(err, pki.ErrStep):
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.As(err, &conflict):
		http.Error(w, "the exchange of the CA has gone on meanwhile; look at it again", http.StatusConflict)
	case errors.Is(err, raftstore.ErrUnknownOutcome):
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
	default:
		adminapi.Unavailable(w, err)
	}
}

// stillNode tells why a node with a certificate that ended then gets no new one. What counts is its
// Node: whoever deletes that has removed the node; one that was made after the end is another
// machine's.
func (s *server) stillNode(ctx context.Context, name string, ended time.Time) error {
	client, err := kubernetes.NewForConfig(s.api.LoopbackConfig())
	if err != nil {
		return err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: there is no Node %q", join.ErrRemoved, name)
	}
	if err != nil {
		return fmt.Errorf("look the node up: %w", err)
	}
	return sameMachine(node, ended)
}

func sameMachine(node *corev1.Node, ended time.Time) error {
	if made := node.CreationTimestamp.Time; made.After(ended) {
		return fmt.Errorf("%w: the Node %q was made at %s, by another machine", join.ErrRemoved, node.Name, made.UTC().Format(time.RFC3339))
	}
	return nil
}

// memberOf finds a living server in gossip.
func (s *server) memberOf(name string) (gossip.Member, error) {
	m, ok := s.pool.Member(name)
	switch {
	case !ok:
		return m, fmt.Errorf("server %s is not known to gossip", name)
	case m.State != gossip.Alive:
		return m, fmt.Errorf("server %s shows no life since %s", name, m.Since.UTC().Format(time.RFC3339))
	}
	return m, nil
}
