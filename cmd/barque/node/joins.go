package node

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/admissions"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/judge"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/register"
)

// joinFolder is the place in the store of join tokens, and of the records about members. It is
// outside of the API's objects.
const joinFolder = "/barque/join/"

// joiningParts are those of a server that let machines in, and keep them out.
type joiningParts struct {
	tokens    *token.Store
	book      *admissions.Book
	peers     *admissions.Peers
	revoked   *revocation.List
	judge     *judge.Judge
	unrelated enroll.Unrelated
}

// openBook opens the join tokens and the records about members.
func (s *server) openBook(context.Context) error {
	folder, logger := register.NewFolder(s.store, joinFolder), s.logger.With("part", "join")
	s.joining.tokens = &token.Store{Records: folder, Client: s.ownClient, CAs: s.caDigests, Now: time.Now}
	s.joining.book = &admissions.Book{Records: folder, Self: s.options.Name, IsServer: s.isServer,
		Unrecorded: s.joining.tokens.FormerCount, Others: s.ids.Others, Now: time.Now, Logger: logger}
	s.joining.book.Former = func(ctx context.Context) error {
		return s.joining.judge.Book.NoteMixed(ctx, 0, s.options.Name)
	}
	s.joining.judge.Overlap = s.newOverlap()
	s.joining.book.Kept = s.ids.PeerKeys
	s.joining.peers.Recorded = s.recordedPeers
	s.ids.RecordKeysBy(s.recordKeys)
	s.ids.Announce = func(ctx context.Context) error {
		return s.joining.judge.Overlap.Announce(ctx, s.peerCertificate())
	}
	return nil
}

// ownClient returns a client of this server's own API.
func (s *server) ownClient() (kubernetes.Interface, error) {
	return kubernetes.NewForConfig(s.api.LoopbackConfig())
}

// caDigests are those of the CAs that the cluster believes; the first one issues.
func (s *server) caDigests() (digests []string) {
	for _, ca := range s.ids.Trust.CAs() {
		digests = append(digests, ca.Digest())
	}
	return digests
}

func (s *server) peerCertificate() *x509.Certificate { return s.ids.Peer.Certificate().Leaf }

// startPublishing records the key of each of this server's certificates for other servers.
func (s *server) startPublishing(ctx context.Context) error {
	return s.stack.Start(ctx, lifecycle.Component{Name: "server keys", Run: func(ctx context.Context) error {
		return lifecycle.All(ctx,
			func(ctx context.Context) error {
				return s.joining.book.PublishAll(ctx, s.peerCertificate, s.ids.Renewed)
			},
			func(ctx context.Context) error { return s.joining.peers.Retry(ctx, s.awaitNewest) })
	}})
}

// awaitNewest returns when this server's view of the store is that of the leader.
func (s *server) awaitNewest(ctx context.Context) error {
	_, err := s.store.View(ctx, raftstore.ViewOptions{})
	return err
}

// recordedPeers are the keys of the members for each other, by their IDs, and the names of those
// that have recorded none.
func (s *server) recordedPeers(ctx context.Context) (keys map[string][]string, missing []string, err error) {
	return recordedPeers(ctx, s.joining.book, s.store.Members())
}

func recordedPeers(ctx context.Context, book *admissions.Book, members []raftstore.Member) (
	keys map[string][]string, missing []string, err error) {
	recorded, err := book.PeerKeys(ctx)
	if err != nil {
		return nil, nil, err
	}
	if len(members) == 0 {
		return nil, nil, errors.New("this server does not know the members of the store yet")
	}
	keys = make(map[string][]string, len(members))
	for _, m := range members {
		if len(recorded[m.ID]) == 0 {
			missing = append(missing, m.Name)
			continue
		}
		keys[m.ID] = recorded[m.ID]
	}
	slices.Sort(missing)
	return keys, missing, nil
}

// unrecorded are the names of the members that have recorded no key for other servers, as far as
// this server knows.
func (s *server) unrecorded() []string {
	_, missing, err := s.recordedPeers(context.Background()) // which waits for nobody
	if err != nil {
		s.logger.Debug("it is not known which servers have recorded no key", "err", err)
	}
	return missing
}

// watchPeers lets this server believe the CA before again while it has no leader. It begins before
// this server is a member, and before any other part needs a leader.
func (s *server) watchPeers(ctx context.Context) error {
	s.joining.peers.Led = func() bool {
		_, led := s.store.Leader()
		return led
	}
	s.joining.peers.Confirm, s.joining.peers.Changed = s.confirmExchange, s.mux.Recheck
	return s.stack.Start(ctx, lifecycle.Component{Name: "peers", Run: s.joining.peers.Watch})
}

// confirmExchange returns nil if the cluster, by its leader, makes the same CA known for servers.
func (s *server) confirmExchange(ctx context.Context, b pki.Bundle) error {
	return confirmExchange(ctx, s.store, b)
}

func confirmExchange(ctx context.Context, store register.Store, b pki.Bundle) error {
	value, _, err := register.New(store, caKey).Get(ctx)
	if err != nil {
		return err
	}
	var is exchange.State
	if err := json.Unmarshal(value, &is); err != nil {
		return fmt.Errorf("the state of the exchange of the CA: %w", err)
	}
	own, err := b.NewestFor(pki.Peers)
	if err != nil {
		return err
	}
	if next, err := is.Bundle.NewestFor(pki.Peers); err != nil || next != own || !is.Bundle.ExchangesCA() {
		return errors.New("the cluster is not in the exchange in which this server takes part")
	}
	return nil
}

// current returns the reason why the certificate is not the present one of a member, or nil.
func (s *server) current(ctx context.Context, cert *x509.Certificate) error {
	return current(ctx, s.joining.peers, s.joining.book, s.store.Members(), cert)
}

func current(ctx context.Context, peers *admissions.Peers, book *admissions.Book, members []raftstore.Member,
	cert *x509.Certificate) error {
	id := ""
	for _, m := range members {
		if m.Name == cert.Subject.CommonName {
			id = m.ID
		}
	}
	if err := peers.Asks(id, cert); err != nil {
		return err
	}
	return book.Current(ctx, cert)
}

// recordKeys records the keys of this server for others, the next one too. It fails unless this
// server uses the very generation of the CAs that the store has: in an exchange that it takes no
// part in, other servers may know the keys from before alone. So they may after a restore, which
// puts the store back. An exchange that begins later begins with all of these keys.
func (s *server) recordKeys(ctx context.Context) error {
	if err := s.joining.book.Publish(ctx, s.peerCertificate()); err != nil {
		return err
	}
	value, _, err := register.New(s.store, caKey).Get(ctx)
	if err != nil {
		return fmt.Errorf("look whether the CA is exchanged: %w", err)
	}
	return sameGeneration(value, s.ids.Trust.Bundle().Generation)
}

// sameGeneration returns an error unless the state of the CAs in the store is of the generation.
// Without a state it is the first one.
func sameGeneration(state []byte, own uint64) error {
	is := exchange.State{Bundle: pki.Bundle{Generation: 1}}
	if len(state) > 0 {
		is = exchange.State{}
		if err := json.Unmarshal(state, &is); err != nil {
			return fmt.Errorf("the state of the CAs in the store cannot be read: %w", err)
		}
	}
	if in := is.Bundle.Generation; in != own {
		return fmt.Errorf("this server uses generation %d of the CAs, and the store has %d", own, in)
	}
	return nil
}

// forwarded returns the reason why a transaction is none of the server that has forwarded it.
func forwarded(from string, txn *raftstore.Txn) error {
	return admissions.Forwarded(from, joinFolder, func(yield func(string) bool) {
		for i := range txn.Ops {
			if !yield(txn.Ops[i].Key) {
				return
			}
		}
	})
}

// heldCAs is where this server keeps its CAs. Before it believes another one it has written down by
// which keys it knows the other servers.
type heldCAs struct {
	*credentials.Home
	peers *admissions.Peers
}

// Adopt implements exchange.Home.
func (h heldCAs) Adopt(b pki.Bundle) error {
	if err := h.peers.Begin(context.Background(), b); err != nil {
		return err
	}
	return h.Home.Adopt(b)
}

// eventPatience bounds the writing of an event.
const eventPatience = 10 * time.Second

// decided is told of each grant and each refusal of package join, at the server that decides. The
// machine waits for its answer meanwhile.
func (s *server) decided(ctx context.Context, d join.Decision) {
	s.joining.book.Note(ctx, d)
	if d.Act != join.ActJoin || !d.Granted {
		return
	}
	message := fmt.Sprintf("%s %s at %s was let in by the join token %s, at server %s", d.Role, d.Name, d.Address,
		d.TokenID, s.options.Name)
	// A machine that goes away, and an API that does not take events, keep nobody from joining.
	s.tellOfNode(ctx, joinEvents, d.Name, "NodeAdmitted", message)
}

// Components that write events.
const (
	joinEvents       = "barque-join"
	revocationEvents = "barque-revocation"
)

// tellOfNode writes an event about a Node that may not exist. It does not wait.
func (s *server) tellOfNode(ctx context.Context, component, name, reason, message string) {
	go func() { // ends within eventPatience, and the API refuses it once the server stops
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventPatience)
		defer cancel()
		if err := s.writeEvent(ctx, component, corev1.ObjectReference{Kind: "Node", Name: name, UID: types.UID(name)},
			reason, message); err != nil {
			s.logger.Warn("an event about a node is not written", "node", name, "reason", reason, "err", err)
		}
	}()
}

// formerTokenEnded is told of each former token that is removed.
func (s *server) formerTokenEnded(ctx context.Context, i token.Info) {
	ctx, cancel := context.WithTimeout(ctx, eventPatience)
	defer cancel()
	message := fmt.Sprintf(
		"the join token %s for the role %s was removed: it was readable in its Secret, and all servers keep tokens elsewhere now; make a new one if it is needed", i.ID, i.Role)
	of := corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: metav1.NamespaceSystem,
		Name: "bootstrap-token-" + i.ID}
	if err := s.writeEvent(ctx, joinEvents, of, "JoinTokenRemoved", message); err != nil {
		s.logger.Warn("no event says that a join token was removed", "tokenID", i.ID, "err", err)
	}
}

// writeEvent writes an event about an object that may not exist (yet).
func (s *server) writeEvent(
	ctx context.Context, component string, of corev1.ObjectReference, reason, message string,
) error {
	client, err := s.ownClient()
	if err != nil {
		return err
	}
	namespace, now := of.Namespace, metav1.Now()
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where events about Nodes are
	}
	_, err = client.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: of.Name + ".", Namespace: namespace},
		InvolvedObject: of, Type: corev1.EventTypeNormal, Reason: reason, Message: message, Count: 1,
		FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: component, Host: s.options.Name}, ReportingController: component,
		ReportingInstance: s.options.Name,
	}, metav1.CreateOptions{})
	return err
}

// tokenPeers are the servers of the cluster, as those that keep join tokens.
func (s *server) tokenPeers() (peers []token.Peer) {
	for _, m := range s.store.Members() {
		p := token.Peer{Name: m.Name, Gone: time.Since(s.started)}
		if m.Name == s.options.Name {
			p.Alive, p.Kept = true, token.Kept
		} else if seen, ok := s.pool.Member(m.Name); ok {
			p.Alive, p.Kept, p.Gone = seen.State == gossip.Alive, seen.Facts.Tokens, time.Since(seen.Since)
		}
		peers = append(peers, p)
	}
	return peers
}

// joinUpkeep is the leader's work on join tokens and on records about members.
func (s *server) joinUpkeep(ctx context.Context, _ kubernetes.Interface) error {
	term := runtime.TermFrom(ctx)
	keeper := token.Keeper{Store: s.joining.tokens, Peers: s.tokenPeers, Logger: s.logger.With("part", "join"),
		Ended: func(i token.Info) { s.formerTokenEnded(ctx, i) }}
	return lifecycle.All(ctx,
		func(ctx context.Context) error { return keeper.Lead(ctx, term) },
		func(ctx context.Context) error { return s.joining.book.Forget(ctx, term, s.members.NodeNames) })
}
