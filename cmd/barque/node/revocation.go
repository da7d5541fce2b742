package node

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/cmd/barque/node/adapters"
	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/acts"
	"github.com/barque/barque/membership/admissions"
	"github.com/barque/barque/membership/judge"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/register"
)

// revokedFolder is the place in the store of revocations, outside of the API's objects.
const revokedFolder = "/barque/revoked/"

// loadRevoked reads the list before anything listens.
func (s *server) loadRevoked() (err error) {
	s.joining.revoked, err = revocation.Load(s.options.DataDir, s.logger.With("part", "revocations"))
	return err
}

// storeRevision is the revision of this server's state; 0 before the store is open.
func (s *server) storeRevision() uint64 {
	if store := s.late.store.Load(); store != nil {
		return store.Revision()
	}
	return 0
}

// dateCertificates dates this server's certificates, and those that it issues, by the open store.
func (s *server) dateCertificates(ctx context.Context) error {
	s.late.store.Store(s.store)
	s.ids.Trust.Dated(s.storeRevision)
	return s.ids.Renew(ctx)
}

// barred returns the reason why another server may not speak here. others are what it has sent
// along with its certificate.
func (s *server) barred(leaf *x509.Certificate, others []*x509.Certificate) error {
	if pki.SignedOnRequest(leaf) { // with one CA for all purposes, its names may be a server's
		return fmt.Errorf(
			"the certificate of %q was signed on request: servers among each other have certificates of their own",
			leaf.Subject.CommonName)
	}
	if err := s.joining.revoked.Check(leaf); err != nil {
		return err
	}
	if err := s.joining.peers.Check(leaf, others); err != nil {
		return err
	}
	id, store := pki.HolderOf(leaf), s.late.store.Load()
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
	store, logger := adapters.RevokedRecords{Folder: register.NewFolder(s.store, revokedFolder), Store: s.store},
		s.logger.With("part", "revocations")
	s.joining.judge = judge.New(judge.Config{
		Self: s.options.Name, Trust: s.ids.Trust, List: s.joining.revoked, Store: store, Connections: s.mux,
		IsAgent: s.isAgent, Logger: logger,
		Book: &revocation.Book{Store: store, List: s.joining.revoked, Self: s.options.Name, CAs: s.caDigests,
			Ends: func() time.Time { return judge.LastEnd(s.ids.Trust) }, Now: time.Now, Logger: logger},
		Announce: func(version uint64) {
			if pool := s.late.pool.Load(); pool != nil {
				pool.SetRevoked(version)
			}
		},
		Own: func() []*x509.Certificate {
			own, _ := s.ids.Others()
			return append(own, s.peerCertificate())
		},
	})
	return s.stack.Start(ctx, lifecycle.Component{Name: "revocations", Run: s.joining.judge.Run})
}

// newOverlap judges certificates while the CA is exchanged.
func (s *server) newOverlap() *admissions.Overlap {
	book := s.joining.judge.Book
	return &admissions.Overlap{Trust: s.ids.Trust, Book: s.joining.book, AgentKeys: book.Keys, IsAgent: s.isAgent,
		Mixed: book.Mixed, Logger: s.logger.With("part", "revocations"),
		Members: s.memberNames}
}

func (s *server) memberNames() (names []string) {
	for _, m := range s.store.Members() {
		names = append(names, m.Name)
	}
	return names
}

// isAgent reports whether the name is that of a member Node of an agent, as this server knows.
func (s *server) isAgent(name string) bool {
	known := s.synced()
	return known != nil && known.IsAgent(name)
}

// revocationUpkeep is the leader's work on revocations.
func (s *server) revocationUpkeep(ctx context.Context, client kubernetes.Interface) error {
	nodes := judge.Nodes{Client: client.CoreV1().Nodes()}
	keeper := revocation.Keeper{Book: s.joining.judge.Book, Nodes: s.members.AgentUIDs, Marked: s.members.Marked,
		Node: nodes.UID, Delete: nodes.Delete,
		Earlier: func(
			ctx context.Context,
		) (ran, may []string, err error) {
			return s.joining.book.Earlier(ctx, s.memberNames())
		},
		Settled: func() bool { return !s.ids.Trust.Bundle().ExchangesCA() },
		Revoked: func(e revocation.Entry) { s.revokedAgent(ctx, e) },
		Waiting: func(names []string) {
			message := fmt.Sprintf(
				"the Nodes of many agents were deleted: the certificates of %d are revoked later; `barque cert readmit NODE` lets agents in again", len(names))
			s.tellOfNode(ctx, revocationEvents, names[0], "RevocationsWait", message)
		},
	}
	return keeper.Lead(ctx, runtime.TermFrom(ctx))
}

// revokedAgent writes the audit record and the event of a revocation.
func (s *server) revokedAgent(ctx context.Context, e revocation.Entry) {
	s.auditAct(acts.Leader, nil, revokedFolder, acts.Revocation(e.Kind, e.Name, e.Why))
	s.tellOfNode(ctx, revocationEvents, e.Name, "CertificatesRevoked",
		fmt.Sprintf("the certificates of agent %s are revoked: %s; the machine joins again with a new token", e.Name,
			e.Why))
}
