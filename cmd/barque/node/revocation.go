package node

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/audit"
	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/register"
)

// revokedFolder is the place in the store of revocations, outside of the API's objects.
const revokedFolder = "/barque/revoked/"

// revocations is a server's list of revoked certificates, and its parts that follow it.
type revocations struct {
	list *revocation.List
	book *revocation.Book // nil before the store is open
	mux  *raftstore.Mux
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
	if err := s.revoked.list.Check(leaf); err != nil {
		return err
	}
	id, store := pki.HolderOf(leaf), s.opened.Load()
	if id == "" || store == nil { // of an earlier version, or from before its store was open
		return nil
	}
	isMember := func(id string) bool {
		return slices.ContainsFunc(store.Members(), func(m raftstore.Member) bool { return m.ID == id })
	}
	// A server that was off may not know a newer member yet. It has not reached the revision in
	// that one's certificate. One that joins itself knows nobody.
	if isMember(id) || !isMember(store.ID()) || pki.RevisionOf(leaf) > store.Revision() {
		return nil
	}
	return fmt.Errorf("server %q: %w", id, raftstore.ErrStranger)
}

// startRevocations follows the revocations in the store, and the store's decisions about servers.
func (s *server) startRevocations(ctx context.Context) error {
	folder := register.NewFolder(s.store, revokedFolder)
	s.revoked.book = &revocation.Book{Store: revokedRecords{folder, s.store}, List: s.revoked.list, Self: s.options.Name,
		CAs: s.caDigests, Life: func() time.Duration { return s.options.CertificateLifetime + s.options.CertificateGrace },
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
			func(ctx context.Context) error { return s.followRevocations(ctx, records) })
	}})
}

// lookAtMembers is the pause between two looks at the members. Nothing says that one was removed.
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
		case <-records:
			seen = ""
		case <-trust:
			seen = ""
		}
	}
}

func (s *server) compileRevoked(ctx context.Context, removed []revocation.Removed) error {
	err := s.revoked.book.Compile(ctx, removed, s.isServer)
	s.revoked.mux.Recheck()
	if pool := s.met.Load(); pool != nil {
		pool.SetRevoked(s.revoked.list.Entries().Version)
	}
	return err
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
func (s *server) admit(ctx context.Context, name string, gossipKey []byte) error {
	revision, err := s.revoked.book.Admit(ctx, name, gossipKey)
	if err != nil {
		return fmt.Errorf("note that agent %q joins: %w", name, err)
	}
	_, err = s.store.View(ctx, raftstore.ViewOptions{Stale: true, MinRevision: revision})
	return err
}

// revocationUpkeep is the leader's work on revocations.
func (s *server) revocationUpkeep(ctx context.Context, _ kubernetes.Interface) error {
	client, err := s.ownClient()
	if err != nil {
		return err
	}
	nodes := client.CoreV1().Nodes()
	keeper := revocation.Keeper{Book: s.revoked.book, Nodes: s.agentNodes,
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
	}
	return keeper.Lead(ctx, runtime.TermFrom(ctx))
}

// agentNodes returns the UIDs of the Nodes of agents, by name, once they are synced.
func (s *server) agentNodes() (map[string]string, bool) {
	if !s.members.Synced() {
		return nil, false
	}
	uids := map[string]string{}
	for _, object := range s.members.Nodes.Informer().GetStore().List() {
		n, ok := object.(*corev1.Node)
		if ok && nodeleases.IsMember(n) && !isServers(n) && !s.isServer(n.Name) {
			uids[n.Name] = string(n.UID)
		}
	}
	return uids, true
}

// revokedAgent writes the audit record and the event of a revocation.
func (s *server) revokedAgent(ctx context.Context, e revocation.Entry) {
	s.audit.Record(audit.Request{User: "barque:leader", Method: http.MethodPost, Path: revokedFolder, URI: revokedFolder, Received: time.Now(), Status: http.StatusOK,
		Annotations: map[string]string{"revocation.barque.io/kind": e.Kind, "revocation.barque.io/name": e.Name, "revocation.barque.io/why": e.Why}})
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventPatience)
		defer cancel()
		message := fmt.Sprintf("the certificates of agent %s are revoked: %s; the machine joins again with a new token", e.Name, e.Why)
		if err := s.writeEvent(ctx, corev1.ObjectReference{Kind: "Node", Name: e.Name, UID: types.UID(e.Name)}, "CertificatesRevoked", message); err != nil {
			s.logger.Warn("no event says that certificates are revoked", "name", e.Name, "err", err)
		}
	}()
}
