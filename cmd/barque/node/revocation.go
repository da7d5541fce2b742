package node

import (
	"context"
	"crypto/x509"
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

	"github.com/barque/barque/apiserver/audit"
	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/admissions"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/register"
)

// revokedFolder is the place in the store of revocations, outside of the API's objects.
const revokedFolder = "/barque/revoked/"

// agentsSeen bounds the agents whose keys wait to be recorded.
const agentsSeen = 64

// revocations is a server's list of revoked certificates, and its parts that follow it.
type revocations struct {
	list *revocation.List
	book *revocation.Book // nil before the store is open
	mux  *raftstore.Mux
	// overlap judges certificates while the CA is exchanged; nil before the store is open.
	overlap *admissions.Overlap
	agents  chan *x509.Certificate // seen at the API; holds some
	seen    sync.Map               // by name, the digest of an agent's key that is recorded
	judged  uint64                 // the generation of CAs at the last look at the list
}

// revokedRecords is the folder as package revocation has it.
type revokedRecords struct {
	register.Folder
	store *raftstore.Server
}

// Revision implements revocation.Store.
func (r revokedRecords) Revision() uint64 { return r.store.Revision() }

// Commit implements revocation.Store.
func (r revokedRecords) Commit(ctx context.Context, term uint64, changes ...revocation.Change) (uint64, bool, error) {
	all := make([]register.Change, len(changes))
	for i, c := range changes {
		all[i] = register.Change(c)
	}
	return r.Folder.Commit(ctx, term, all...)
}

// loadRevoked reads the list before anything listens.
func (s *server) loadRevoked() (err error) {
	s.revoked.agents = make(chan *x509.Certificate, agentsSeen)
	s.revoked.list, err = revocation.Load(s.options.DataDir, s.logger.With("part", "revocations"))
	return err
}

// storeRevision is the revision of this server's state; 0 before the store is open.
func (s *server) storeRevision() uint64 {
	if store := s.opened.Load(); store != nil {
		return store.Revision()
	}
	return 0
}

// dateCertificates dates this server's certificates, and those that it issues, by the open store.
func (s *server) dateCertificates(ctx context.Context) error {
	s.opened.Store(s.store)
	s.ids.Trust.Dated(s.storeRevision)
	return s.ids.Renew(ctx)
}

// barred returns the reason why another server may not speak here.
func (s *server) barred(leaf *x509.Certificate) error {
	if pki.SignedOnRequest(leaf) { // with one CA for all purposes, its names may be a server's
		return fmt.Errorf("the certificate of %q was signed on request: servers among each other have certificates of their own", leaf.Subject.CommonName)
	}
	if err := s.revoked.list.Check(leaf); err != nil {
		return err
	}
	id, store := pki.HolderOf(leaf), s.opened.Load()
	if id == "" || store == nil { // of an earlier version, or from before its store was open
		return nil
	}
	if !store.IsStranger(id, pki.RevisionOf(leaf)) {
		return nil
	}
	return fmt.Errorf("server %q: %w", id, raftstore.ErrStranger)
}

// startRevocations follows the revocations in the store, and the store's decisions about servers.
func (s *server) startRevocations(ctx context.Context) error {
	folder := register.NewFolder(s.store, revokedFolder)
	s.revoked.book = &revocation.Book{Store: revokedRecords{folder, s.store}, List: s.revoked.list, Self: s.options.Name,
		CAs: s.caDigests, Ends: s.lastCAEnds,
		Now: time.Now, Logger: s.logger.With("part", "revocations")}
	return s.stack.Start(ctx, lifecycle.Component{Name: "revocations", Run: func(ctx context.Context) error {
		records := make(chan struct{}, 1)
		noted := func() {
			select {
			case records <- struct{}{}:
			default:
			}
		}
		return lifecycle.All(ctx, func(ctx context.Context) error { return folder.Follow(ctx, noted) },
			func(ctx context.Context) error { return s.followRevocations(ctx, records) }, s.recordAgents)
	}})
}

// lastCAEnds is the end of the last CA that is believed.
func (s *server) lastCAEnds() (end time.Time) {
	for _, ca := range s.ids.Trust.EveryCA() {
		if is := ca.Certificate().NotAfter; is.After(end) {
			end = is
		}
	}
	return end
}

// lookAtMembers is the pause between two looks at the members. Nothing says that one was removed,
// or that a peer is found to be a stranger by now.
const lookAtMembers = time.Second

func (s *server) followRevocations(ctx context.Context, records <-chan struct{}) error {
	ticker := time.NewTicker(lookAtMembers)
	defer ticker.Stop()
	var seen string
	for {
		trust := s.ids.Trust.Changed()
		removed, members := s.removedServers(), s.storeServers()
		if now := fmt.Sprint(removed, members); now != seen {
			seen = now
			if err := s.compileRevoked(ctx, removed); err != nil {
				s.logger.Warn("the list of revoked certificates may be an old one", "err", err)
				seen = ""
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			s.revoked.mux.Forget()
		case <-records:
			seen = ""
		case <-trust:
			seen = ""
		}
	}
}

func (s *server) compileRevoked(ctx context.Context, removed []revocation.Removed) error {
	err := s.revoked.book.Compile(ctx, removed, s.isServer)
	s.forgetKeys(ctx)
	s.revoked.mux.Recheck()
	if trust := s.ids.Trust.Bundle(); trust.ExchangesCA() || trust.Generation != s.revoked.judged {
		s.revoked.judged = trust.Generation
		s.revoked.list.Notify() // a CA is gone, or other keys are known
	}
	if pool := s.met.Load(); pool != nil {
		pool.SetRevoked(s.revoked.list.Entries().Version)
	}
	return err
}

// forgetKeys lets the keys of agents be recorded again that are recorded no more.
func (s *server) forgetKeys(ctx context.Context) {
	keys, err := s.revoked.book.Keys(ctx)
	if err != nil {
		return // the next change comes
	}
	s.revoked.seen.Range(func(name, key any) bool {
		if is, ok := keys[name.(string)]; !ok || string(is) != key {
			s.revoked.seen.Delete(name)
		}
		return true
	})
}

// removedServers are those that were taken out of the store for good.
func (s *server) removedServers() (out []revocation.Removed) {
	for id, r := range s.store.Gone() {
		if !r.Dropped {
			out = append(out, revocation.Removed{ID: id, Name: r.Name, Why: r.Why, At: r.At})
		}
	}
	slices.SortFunc(out, func(a, b revocation.Removed) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// admit makes a joining agent's earlier certificates void, and waits until this server can date
// newer ones.
func (s *server) admit(ctx context.Context, name string, key *x509.CertificateRequest, gossipKey []byte) error {
	s.revoked.seen.Delete(name)
	revision, err := s.revoked.book.Admit(ctx, name, pki.DigestOfKey(key.RawSubjectPublicKeyInfo), gossipKey)
	if err != nil {
		return fmt.Errorf("note that agent %q joins: %w", name, err)
	}
	_, err = s.store.View(ctx, raftstore.ViewOptions{Stale: true, MinRevision: revision})
	return err
}

// newOverlap judges certificates while the CA is exchanged.
func (s *server) newOverlap() *admissions.Overlap {
	return &admissions.Overlap{Trust: s.ids.Trust, Book: s.book, AgentKeys: s.revoked.book.Keys, IsAgent: s.isAgent, Mixed: s.revoked.book.Mixed, Logger: s.logger.With("part", "revocations"),
		Members: s.memberNames}
}

func (s *server) memberNames() (names []string) {
	for _, m := range s.store.Members() {
		names = append(names, m.Name)
	}
	return names
}

// counts returns the reason why a genuine client certificate counts no more at the API, or nil.
func (s *server) counts(leaf *x509.Certificate) error {
	if err := s.revoked.list.Check(leaf); err != nil {
		return err
	}
	if err := s.revoked.overlap.Check(leaf); err != nil {
		return err
	}
	s.noteAgent(leaf)
	return nil
}

// isAgent reports whether the name is that of a member Node of an agent, as this server knows.
func (s *server) isAgent(name string) bool {
	known := s.synced()
	if known == nil || s.isServer(name) {
		return false
	}
	node, err := known.Nodes.Lister().Get(name)
	return err == nil && nodeleases.IsMember(node)
}

// noteAgent lets the key of an agent be recorded that has joined by an earlier version, and so has
// no recorded one. It does not wait.
func (s *server) noteAgent(leaf *x509.Certificate) {
	name, node := admissions.AgentOf(leaf)
	proves := node && s.revoked.list.Proves(name, pki.RevisionOf(leaf))
	if !node || !proves && !s.isAgent(name) {
		return
	}
	if key, ok := s.revoked.seen.Load(name); !proves && ok && key == pki.KeyOf(leaf) {
		return
	}
	select {
	case s.revoked.agents <- leaf:
	default: // another request of it will come
	}
}

// recordAgents records keys of agents, until ctx ends.
func (s *server) recordAgents(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case leaf := <-s.revoked.agents:
			name := strings.TrimPrefix(leaf.Subject.CommonName, pki.NodeUser)
			mixed, err := s.revoked.book.Mixed(ctx)
			if err == nil && s.revoked.list.Proves(name, pki.RevisionOf(leaf)) {
				err = s.revoked.book.Prove(ctx, name, pki.RevisionOf(leaf))
			}
			if err == nil && !mixed {
				if err = s.checkKey(ctx, name, leaf); err == nil && !s.ids.Trust.Bundle().ExchangesCA() {
					s.revoked.seen.Store(name, pki.KeyOf(leaf))
				}
			}
			if err != nil && ctx.Err() == nil {
				s.logger.Debug("the key of an agent is not recorded", "agent", name, "err", err)
			}
		}
	}
}

// ownKey refuses a certificate with another key than the agent's. With a server of an earlier
// version the recorded key may be an old one.
func (s *server) ownKey(ctx context.Context, name string, leaf *x509.Certificate) error {
	if mixed, err := s.revoked.book.Mixed(ctx); err != nil || mixed {
		return err
	}
	return s.checkKey(ctx, name, leaf)
}

// checkKey is ownKey while the records are judged by. While the CA is exchanged no key is learned:
// a thief of its key would be first.
func (s *server) checkKey(ctx context.Context, name string, leaf *x509.Certificate) error {
	return s.revoked.book.CheckKey(ctx, name, pki.KeyOf(leaf), !s.ids.Trust.Bundle().ExchangesCA())
}

// needed returns the reason why an operator's order would shut out a present member, or nil. Of a
// serial number alone only this server's own certificates are known.
func (s *server) needed(o revocation.Order) error {
	own, _ := s.ids.Others()
	if slices.ContainsFunc(append(own, s.peerCertificate()), func(c *x509.Certificate) bool { return revocation.SerialOf(c) == o.Serial }) {
		return fmt.Errorf("it is a certificate of server %s", s.options.Name)
	}
	for _, m := range s.store.Members() {
		if m.ID == o.Holder {
			return fmt.Errorf("it is a certificate of server %s, which is a member", m.Name)
		}
	}
	name := strings.TrimPrefix(o.Name, pki.NodeUser)
	if s.isServer(name) || name != o.Name && s.isAgent(name) {
		return fmt.Errorf("it is a certificate of %s, which is a member", name)
	}
	return nil
}

// revocationUpkeep is the leader's work on revocations.
func (s *server) revocationUpkeep(ctx context.Context, client kubernetes.Interface) error {
	nodes := client.CoreV1().Nodes()
	keeper := revocation.Keeper{Book: s.revoked.book, Nodes: s.agentNodes,
		Earlier: func(ctx context.Context) (ran, may []string, err error) { return s.book.Earlier(ctx, s.memberNames()) },
		Marked: func(name string) bool {
			node, err := s.members.Nodes.Lister().Get(name)
			return err == nil && isServers(node)
		},
		Settled: func() bool { return !s.ids.Trust.Bundle().ExchangesCA() },
		Node: func(ctx context.Context, name string) (string, error) {
			node, err := nodes.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return "", nil
			}
			if err != nil {
				return "", err
			}
			return string(node.UID), nil
		},
		Delete: func(ctx context.Context, name, uid string) error {
			err := nodes.Delete(ctx, name, *metav1.NewPreconditionDeleteOptions(uid))
			if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				return nil
			}
			return err
		},
		Revoked: func(e revocation.Entry) { s.revokedAgent(ctx, e) },
		Waiting: func(names []string) {
			message := fmt.Sprintf("the Nodes of many agents were deleted: the certificates of %d are revoked later; `barque cert readmit NODE` lets agents in again", len(names))
			s.tellOfNode(ctx, revocationEvents, names[0], "RevocationsWait", message)
		},
	}
	return keeper.Lead(ctx, runtime.TermFrom(ctx))
}

// agentNodes returns the UIDs of the Nodes of agents, and of former servers, by name, once they are
// synced.
func (s *server) agentNodes() (map[string]string, bool) {
	if !s.members.Synced() {
		return nil, false
	}
	uids := map[string]string{}
	for _, object := range s.members.Nodes.Informer().GetStore().List() {
		n, ok := object.(*corev1.Node)
		if ok && nodeleases.IsMember(n) && !s.isServer(n.Name) {
			uids[n.Name] = string(n.UID)
		}
	}
	return uids, true
}

// revokedAgent writes the audit record and the event of a revocation.
func (s *server) revokedAgent(ctx context.Context, e revocation.Entry) {
	s.audit.Record(audit.Request{User: "barque:leader", Method: http.MethodPost, Path: revokedFolder, URI: revokedFolder, Received: time.Now(), Status: http.StatusOK,
		Annotations: map[string]string{"revocation.barque.io/kind": e.Kind, "revocation.barque.io/name": e.Name, "revocation.barque.io/why": e.Why}})
	s.tellOfNode(ctx, revocationEvents, e.Name, "CertificatesRevoked", fmt.Sprintf("the certificates of agent %s are revoked: %s; the machine joins again with a new token", e.Name, e.Why))
}
