package admissions

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/pki"
)

// Overlap judges certificates while the CA is exchanged. The CA before is believed until the end,
// and a thief of its key can sign for any name. So a certificate of that CA counts only with a key
// that the cluster has recorded: of a server, of an administrator's kubeconfig that a server wrote,
// or of an agent.
type Overlap struct {
	Trust *pki.Trust
	Book  *Book
	// Members are the names of the servers. A server of an earlier version records too few keys:
	// with one of these nothing is judged.
	Members func() []string
	// AgentKeys are the digests of agents' keys, by name.
	AgentKeys func(ctx context.Context) (map[string][]byte, error)
	// IsAgent reports whether the name is that of a member Node of an agent. Without a recorded key
	// that agent was off since its cluster was of an earlier version. It is believed by its name:
	// the API gives it an agent's rights only, and it gets no new certificate.
	IsAgent func(name string) bool
	// Mixed reports whether a server of an earlier version was a member lately: its agents' records
	// may be old ones. Then nothing is judged. It may be nil.
	Mixed  func(ctx context.Context) (bool, error)
	Logger *slog.Logger

	mu     sync.Mutex
	read   time.Time
	judges bool
	known  map[string]bool
	agents map[string][]byte

	servers map[string]bool // names of the members of the store
}

// readAgain is the least time between two looks at the records for a key that is not known.
const readAgain = 200 * time.Millisecond

// AgentOf returns the name of the node for whose join the certificate was issued. The rights of any
// other group would go with the name.
func AgentOf(cert *x509.Certificate) (name string, ok bool) {
	name, ok = strings.CutPrefix(cert.Subject.CommonName, pki.NodeUser)
	return name, ok && slices.Equal(cert.Subject.Organization, []string{pki.NodesGroup}) && !pki.SignedOnRequest(cert)
}

// Check returns the reason why a genuine certificate does not count for now, or nil.
func (o *Overlap) Check(cert *x509.Certificate) error {
	b := o.Trust.Bundle()
	if !b.ExchangesCA() || o.Trust.OfNewest(cert) || o.recorded(cert) {
		return nil
	}
	return fmt.Errorf(
		"the CA is exchanged since %s, and the certificate of %q is of the CA before, with a key that the cluster has not recorded: take admin.kubeconfig from a server's data directory, or get a new certificate when the exchange is over",
		b.Since.UTC().Format(time.RFC3339), cert.Subject.CommonName)
}

// Ends reports whether a genuine certificate would count no more from the beginning of an exchange
// of the CA, while none is under way.
func (o *Overlap) Ends(cert *x509.Certificate) bool {
	return o.Trust.Bundle().Step == pki.Settled && !o.recorded(cert)
}

// recorded reports whether the certificate's key is recorded, or keys are not judged.
func (o *Overlap) recorded(cert *x509.Certificate) bool {
	key := pki.KeyOf(cert)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.known[key] && time.Since(o.read) >= readAgain {
		if err := o.load(context.Background()); err != nil {
			o.Logger.Warn("the recorded keys cannot be read", "err", err)
		}
		o.read = time.Now()
	}
	if !o.judges || o.known[key] {
		return true
	}
	name, ok := AgentOf(cert)
	if !ok || o.servers[name] {
		return false
	}
	recorded, known := o.agents[name]
	return known && string(recorded) == key || !known && o.IsAgent(name)
}

// Announce records the keys of this server's certificates, and returns when this server judges by
// them. Until then a client that has its certificate from this server must not use it.
func (o *Overlap) Announce(ctx context.Context, own *x509.Certificate) error {
	if err := o.Book.Publish(ctx, own); err != nil {
		return err
	}
	if _, _, err := o.Book.Records.Get(ctx, serverAt+o.Book.Self); err != nil { // this server has it then
		return fmt.Errorf("wait for the record of this server's keys: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.read = time.Time{}
	return nil
}

// load reads all records, or leaves those of the last reading as they are: without the agents' keys
// a forged certificate would count as that of an agent that was not seen yet. The caller holds mu.
func (o *Overlap) load(ctx context.Context) error {
	records, err := o.Book.Records.Known(ctx, serverAt)
	if err != nil {
		return err
	}
	agents, err := o.AgentKeys(ctx)
	if err != nil {
		return err
	}
	mixed := false
	if o.Mixed != nil {
		if mixed, err = o.Mixed(ctx); err != nil {
			return err
		}
	}
	o.agents, o.known, o.servers, o.judges = agents, map[string]bool{}, map[string]bool{}, !mixed
	for _, name := range o.Members() {
		o.servers[name] = true
		var is serverKey
		if data, ok := records[name]; !ok || json.Unmarshal(data, &is) != nil || len(is.Keys) == 0 {
			o.judges = false
		}
		o.known[is.Digest] = true
		for _, key := range slices.Concat(is.Keys, is.Peer) {
			o.known[key] = true
		}
		for _, admin := range is.Admins {
			o.known[admin.Digest] = true
		}
	}
	return nil
}
