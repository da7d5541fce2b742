package adminapi

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/clusterusers"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

const (
	// CertificatesPath: GET answers with the ClusterCertificates. The parameter "of", the name of a
	// server, limits the answer to its NodeCertificates. POST with "of" makes that server renew all
	// of its certificates now, and answers with them. It answers 504 if the outcome is unknown.
	CertificatesPath = "/barque/v1/certificates"
	// CAPath: GET answers with the exchange.Status. POST with the parameter "change", an
	// exchange.Change, makes that, for administrators only. It answers 409 if the caller's own
	// certificate would count no more from the beginning, unless LoseAccess is a parameter. The
	// body of a change that brings a CA, for members of system:masters only, is an exchange.Given.
	// It has a key, and is not recorded anywhere.
	CAPath = "/barque/v1/ca"
	// LoseAccess is the parameter of an exchange that the caller may not be able to watch.
	LoseAccess = "loseAccess"
	// SeenGeneration is the parameter with the generation that the caller has seen: the change is
	// refused with 409 when there is another one by then.
	SeenGeneration = "generation"
)

// ClusterCertificates are all certificates in one server's view.
type ClusterCertificates struct {
	From     string                         `json:"from"`
	CA       exchange.Status                `json:"ca"`
	CAs      []credentials.CertificateInfo  `json:"cas"` // trusted; the first one of each name issues
	Nodes    []credentials.NodeCertificates `json:"nodes"`
	Warnings []string                       `json:"warnings,omitempty"`
}

// Certificates shows and renews the certificates of the cluster.
type Certificates struct {
	Self     string // this server's name
	Own      func() credentials.NodeCertificates
	Renew    func(ctx context.Context) error // all of this server's
	Exchange interface {
		Status() exchange.Status
		Apply(ctx context.Context, request exchange.Request) (exchange.Status, error)
	}
	// Ends reports whether a client certificate counts no more from the beginning of an exchange.
	Ends     func(cert *x509.Certificate) bool
	Servers  func() []string // members of the store
	IsServer func(name string) bool
	// Call calls another server's API, which answers with JSON.
	Call func(ctx context.Context, method, name, path string, out any) error
	Pool interface {
		Members() []gossip.Member
		AboutOf(ctx context.Context, name string) (json.RawMessage, error)
	}
	// Agents returns the names of the agents with a Node; gossip may not know all of them. nil is
	// none.
	Agents func() []string
	// Revoked returns the revoked certificates; nil is none.
	Revoked  func() *revocation.Entries
	Trust    *pki.Trust
	CAFile   string
	Lifetime time.Duration // of certificates
	Logger   *slog.Logger
}

// certificates describes all certificates of the cluster. It asks the other servers.
func (s *Certificates) certificates(ctx context.Context) ClusterCertificates {
	now := time.Now()
	all := ClusterCertificates{From: s.Self, CA: s.Exchange.Status(), Nodes: []credentials.NodeCertificates{s.Own()}}
	for _, ca := range s.Trust.EveryCA() {
		info := credentials.InfoOf(credentials.NameOf(s.Trust, ca), ca.Certificate(), false, now)
		if info.Name == credentials.CAName {
			info.File = s.CAFile
		}
		if !s.Trust.Bundle().ExchangesCA() {
			info.Warning = credentials.CAWarning(ca, s.Trust.Issuer().External(), s.Lifetime, now)
		}
		all.CAs = append(all.CAs, info)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, name := range s.Servers() {
		if name == s.Self {
			continue
		}
		wg.Go(func() {
			n := s.certificatesOf(ctx, name)
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
	slices.SortFunc(all.Nodes, func(a, b credentials.NodeCertificates) int {
		if a.Role != b.Role {
			return -strings.Compare(a.Role, b.Role) // servers first
		}
		return strings.Compare(a.Node, b.Node)
	})
	all.Warnings = all.warnings()
	return all
}

// warnings returns the warnings for an operator.
func (c *ClusterCertificates) warnings() []string {
	var out []string
	for _, ca := range c.CAs {
		if ca.Warning != "" {
			out = append(out,
				fmt.Sprintf("the CA %s, which ends at %s: %s", ca.Subject, ca.NotAfter.UTC().Format(time.RFC3339),
					ca.Warning))
		}
	}
	if c.CA.External && !c.CA.Separate && !c.CA.UnderWay() {
		out = append(out,
			"the CA that an operator has brought is for all purposes: whoever has its key, or gets a certificate of a server's names from it elsewhere, can act as a server. "+
				"With all servers of this version `barque cert rotate --ca --ca-file CHAIN --ca-key-file KEY` gives servers and the front proxy CAs of the cluster's own")
	}
	for _, n := range c.Nodes {
		if n.Problem != "" {
			out = append(out, fmt.Sprintf("the certificates of %s %s are unknown: %s", n.Role, n.Node, n.Problem))
		}
		for _, cert := range n.Certificates {
			if cert.Warning != "" {
				out = append(out,
					fmt.Sprintf("the certificate %q of %s %s, which ends at %s: %s", cert.Name, n.Role, n.Node,
						cert.NotAfter.UTC().Format(time.RFC3339), cert.Warning))
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
func (s *Certificates) certificatesOf(ctx context.Context, name string) credentials.NodeCertificates {
	var n credentials.NodeCertificates
	if err := s.Call(ctx, http.MethodGet, name, CertificatesPath+"?of="+name, &n); err != nil {
		return credentials.NodeCertificates{Node: name, Role: pki.RoleServer, Problem: err.Error()}
	}
	return n
}

// AddHandlers serves CertificatesPath and CAPath.
func (s *Certificates) AddHandlers(handlers map[string]http.Handler) {
	renew := extra.MastersAndServers(http.MethodPost, s.serveRenewal)
	handlers[CertificatesPath] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch of := r.URL.Query().Get("of"); {
		case r.Method != http.MethodGet:
			renew.ServeHTTP(w, r)
		case of == "":
			extra.Answer(w, http.StatusOK, s.certificates(r.Context()))
		case of == s.Self:
			extra.Answer(w, http.StatusOK, s.Own())
		case s.IsServer(of):
			extra.Answer(w, http.StatusOK, s.certificatesOf(r.Context(), of))
		default:
			http.Error(w, fmt.Sprintf("%q %v", of, ErrNoMember), http.StatusNotFound)
		}
	})
	change := extra.MastersOnly(http.MethodPost, s.serveCAChange)
	handlers[CAPath] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			extra.Answer(w, http.StatusOK, s.Exchange.Status())
			return
		}
		change.ServeHTTP(w, r)
	})
}

func (s *Certificates) serveRenewal(w http.ResponseWriter, r *http.Request) {
	of := r.URL.Query().Get("of")
	n := credentials.NodeCertificates{Node: of, Role: pki.RoleServer}
	var err error
	switch {
	case of == s.Self:
		if err = s.Renew(r.Context()); err == nil {
			n = s.Own()
			s.Logger.Info("certificates renewed, as an operator wanted")
		}
	case s.IsServer(of):
		err = s.Call(r.Context(), http.MethodPost, of, CertificatesPath+"?of="+of, &n)
	default:
		http.Error(w, fmt.Sprintf("%q %v", of, ErrNoMember), http.StatusNotFound)
		return
	}
	switch {
	case errors.Is(err, ErrOutcomeUnknown):
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		extra.Answer(w, http.StatusOK, n)
	}
}

// longestGiven bounds the text of a CA that an operator brings.
const longestGiven = 128 << 10

func (s *Certificates) serveCAChange(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	begin := exchange.Request{Change: exchange.Change(query.Get("change"))}
	if text := query.Get(SeenGeneration); text != "" {
		var err error
		if begin.Seen, err = strconv.ParseUint(text, 10, 64); err != nil || begin.Seen == 0 {
			http.Error(w,
				fmt.Sprintf("the parameter %s is %q: want the generation in the status of the exchange", SeenGeneration,
					text), http.StatusBadRequest)
			return
		}
	}
	if begin.Change.BeginsCA() && !query.Has(LoseAccess) && s.locksOut(r) {
		http.Error(w,
			"nothing was changed: your own certificate counts no more from the beginning of the exchange, because the cluster has not recorded its key. "+
				"Use admin.kubeconfig of the data directory of a server (barque cert rotate --ca --kubeconfig FILE). "+
				"To begin all the same, give --lose-access; you get a new certificate from another administrator when the exchange is over", http.StatusConflict)
		return
	}
	if begin.Change.BringsCA() {
		if !isMaster(r) {
			http.Error(w,
				"nothing was changed: the cluster's next CA, whose key its sender has, comes from a member of system:masters only: use admin.kubeconfig of the data directory of a server "+
					"(barque cert rotate --ca --kubeconfig FILE)", http.StatusForbidden)
			return
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, longestGiven)).Decode(&begin.Given); err != nil {
			// the error may quote the key
			http.Error(w, "the body is not a CA with its key in JSON", http.StatusBadRequest)
			return
		}
	}
	status, err := s.Exchange.Apply(r.Context(), begin)
	var conflict *raftstore.ConflictError
	_, earlier := errors.AsType[*exchange.EarlierError](err)
	switch {
	case err == nil:
		extra.Answer(w, http.StatusOK, status)
	case errors.Is(err, exchange.ErrChange):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case errors.Is(err, pki.ErrUnfit):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	case errors.Is(err, pki.ErrStep), errors.Is(err, exchange.ErrExternal), errors.Is(err, exchange.ErrMoved), earlier:
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.As(err, &conflict):
		http.Error(w, "the exchange has moved on; read its status again", http.StatusConflict)
	case errors.Is(err, raftstore.ErrUnknownOutcome):
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
	default:
		extra.Unavailable(w, err)
	}
}

// isMaster reports whether the client's own certificate makes it a member of system:masters. A
// member of barque:admins may impersonate one.
func isMaster(r *http.Request) bool {
	who, ok := request.UserFrom(r.Context())
	return ok && clusterusers.HasMasters(who.GetGroups()) &&
		r.TLS != nil && len(r.TLS.PeerCertificates) > 0 &&
		clusterusers.HasMasters(r.TLS.PeerCertificates[0].Subject.Organization)
}

// locksOut reports whether an exchange of the CA makes the caller's certificate void. A certificate
// beside a bearer token names another user, or is not needed.
func (s *Certificates) locksOut(r *http.Request) bool {
	who, ok := request.UserFrom(r.Context())
	if !ok || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	leaf := r.TLS.PeerCertificates[0]
	return leaf.Subject.CommonName == who.GetName() && s.Ends(leaf)
}

const (
	// aboutPatience bounds how long one agent is waited for, and agentsPatience all of them.
	aboutPatience  = 2 * time.Second
	agentsPatience = 8 * time.Second
	// agentsAtOnce bounds how many are asked at a time.
	agentsAtOnce = 32
)

// agentCertificates describes the certificates of all agents. It asks the living ones.
func (s *Certificates) agentCertificates(ctx context.Context, now time.Time) []credentials.NodeCertificates {
	ctx, cancel := context.WithTimeout(ctx, agentsPatience)
	defer cancel()
	var agents []gossip.Member
	for _, m := range s.Pool.Members() {
		if m.Role != pki.RoleServer {
			agents = append(agents, m)
		}
	}
	out := make([]credentials.NodeCertificates, len(agents))
	turn := make(chan struct{}, agentsAtOnce)
	var asking sync.WaitGroup
	for i, m := range agents {
		asking.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			out[i] = s.certificatesOfAgent(ctx, m, now)
		})
	}
	asking.Wait()
	return out
}

func (s *Certificates) certificatesOfAgent(
	ctx context.Context, m gossip.Member, now time.Time,
) credentials.NodeCertificates {
	n := credentials.NodeCertificates{Node: m.Name, Role: m.Role, Generation: m.Facts.Trust}
	if m.State == gossip.Alive {
		ctx, cancel := context.WithTimeout(ctx, aboutPatience)
		defer cancel()
		told, err := s.Pool.AboutOf(ctx, m.Name)
		if err == nil {
			n.Certificates, err = credentials.ToldCertificates(told, now)
		}
		if err != nil {
			n.Problem = fmt.Sprintf("it does not report its kubelet's certificates: %v", err)
		}
	}
	if s.Revoked != nil {
		MarkRevoked(&n, s.Revoked())
	}
	proof := credentials.CredentialInfo(s.Trust, m.Name, m.ProvenUntil, m.ProvenBy, now)
	proof.RenewAt = m.ProvenUntil.Add(-s.Lifetime / 3)
	n.Certificates = append(n.Certificates, proof)
	for i := range n.Certificates {
		if c := &n.Certificates[i]; c.Warning == "" && credentials.Overdue(c.RenewAt, c.NotAfter, now) {
			c.Warning = "it should have been renewed: see the log of that agent; an agent that was off gets new certificates when it starts"
		}
	}
	// that was a guess: the server that issued it may have another lifetime
	n.Certificates[len(n.Certificates)-1].RenewAt = time.Time{}
	return n
}
