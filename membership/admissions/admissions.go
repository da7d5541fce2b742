// Package admissions keeps the records of the admission of the cluster's members, in the store and
// outside of the Kubernetes API: which machine joined when and by which token, and which key each
// server has now. A certificate of the cluster's CA proves a name. The recorded key proves that the
// holder is the member of that name, and not a thief of the CA.
package admissions

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// Records is the interface of the store. See token.Records.
type Records interface {
	Get(ctx context.Context, name string) (value []byte, revision uint64, err error)
	// Known is List as this server has it, however old.
	Known(ctx context.Context, under string) (map[string][]byte, error)
	Put(ctx context.Context, name string, value []byte, revision, term uint64) (won bool, err error)
	Delete(ctx context.Context, name string, revision, term uint64) (won bool, err error)
}

// Names of records, followed by the machine's name.
const (
	joinedAt = "joined/"
	serverAt = "server/"
)

// Admission is how a machine joined last.
type Admission struct {
	Role    string    `json:"role"`
	At      time.Time `json:"at"`
	TokenID string    `json:"tokenID"`
	Address string    `json:"address"`
	By      string    `json:"by"` // the server that let it in
}

// Book is the records, at one server.
type Book struct {
	Records Records
	Self    string // this server's name
	// IsServer reports whether a server of that name is a member of the store.
	IsServer func(name string) bool
	// Unrecorded reports whether a server without a recorded key may be a member: one of an earlier
	// version, which records none.
	Unrecorded func(ctx context.Context) (bool, error)
	// Others returns this server's certificates beside that for other servers, and that of the
	// administrator. It may be nil.
	Others func() (machine []*x509.Certificate, admin *x509.Certificate)
	// Kept returns the digests of the keys for other servers that are on disk. It may be nil.
	Kept func() []string
	// Former is called before Publish replaces the record that an earlier version has made of this
	// server. It may be nil.
	Former func(ctx context.Context) error
	Now    func() time.Time
	Logger *slog.Logger
}

// Note records the admission of a machine. A failure is logged: it takes nothing from the machine.
func (b *Book) Note(ctx context.Context, d join.Decision) {
	if d.Act != join.ActJoin || !d.Granted {
		return
	}
	a := Admission{Role: d.Role, At: b.Now().UTC().Truncate(time.Second), TokenID: d.TokenID, Address: d.Address,
		By: b.Self}
	if err := b.set(ctx, joinedAt+d.Name, a); err != nil {
		b.Logger.Warn("an admission is not recorded: `barque cluster members` will not show it", "name", d.Name,
			"tokenID", d.TokenID, "err", err)
	}
}

// set writes a record, unless it is the same already.
func (b *Book) set(ctx context.Context, name string, value any) error {
	return b.change(ctx, name, func([]byte) (any, error) { return value, nil })
}

// change writes a record that follows from the one before, nil without one. value is called again
// when another write was faster.
func (b *Book) change(ctx context.Context, name string, value func(was []byte) (any, error)) error {
	for ctx.Err() == nil {
		old, revision, err := b.Records.Get(ctx, name)
		if err != nil {
			return err
		}
		next, err := value(old)
		if err != nil {
			return err
		}
		data, err := json.Marshal(next)
		if err != nil || revision != 0 && string(old) == string(data) {
			return err
		}
		if won, err := b.Records.Put(ctx, name, data, revision, 0); err != nil || won {
			return err
		}
	}
	return context.Cause(ctx)
}

// Admissions returns how each machine joined last, by its name, as far as this server knows.
func (b *Book) Admissions(ctx context.Context) (map[string]Admission, error) {
	all, err := b.Records.Known(ctx, joinedAt)
	if err != nil {
		return nil, err
	}
	out := make(map[string]Admission, len(all))
	for name, data := range all {
		var a Admission
		if err := json.Unmarshal(data, &a); err != nil {
			return nil, fmt.Errorf("the record of the admission of %q: %w", name, err)
		}
		out[name] = a
	}
	return out, nil
}

// serverKey is a server's record.
type serverKey struct {
	Digest string `json:"digest"` // of its public key
	// Keys are the digests of its other keys, and Admins those of administrators' kubeconfigs that
	// it has written, which people copy. Earlier versions record neither.
	Keys   []string   `json:"keys,omitempty"`
	Admins []adminKey `json:"admins,omitempty"`
	// Peer are the digests of the keys for other servers that it keeps on its disk: the one in use,
	// and perhaps the next one. ID is its own in the store: a server that joined again by the same
	// name has another one. Earlier versions record neither.
	Peer []string `json:"peer,omitempty"`
	ID   string   `json:"id,omitempty"`
}

type adminKey struct {
	Digest string    `json:"digest"`
	Until  time.Time `json:"until"`
}

// maxAdmins bounds the recorded keys of kubeconfigs. There is a new one at each start and renewal.
const maxAdmins = 64

// Publish records the key of this server's certificate for other servers.
func (b *Book) Publish(ctx context.Context, own *x509.Certificate) error {
	err := b.change(ctx, serverAt+b.Self, func(was []byte) (any, error) {
		key := serverKey{Digest: pki.KeyOf(own)}
		if b.Kept != nil {
			key.Peer, key.ID = b.Kept(), pki.HolderOf(own)
		}
		if b.Others == nil {
			return key, nil
		}
		if was != nil && b.Former != nil && ofEarlier(was) {
			if err := b.Former(ctx); err != nil {
				return nil, err
			}
		}
		key.add(was, b.Others, b.Now())
		return key, nil
	})
	if err != nil {
		return fmt.Errorf("record the key of this server's certificate: %w", err)
	}
	return nil
}

// ofEarlier reports whether a server of an earlier version has written the record of its key.
func ofEarlier(record []byte) bool {
	var key serverKey
	return json.Unmarshal(record, &key) == nil && len(key.Keys) == 0
}

// Earlier returns the servers that ran an earlier version last, by their records, and the members
// that may: they have no record.
func (b *Book) Earlier(ctx context.Context, members []string) (ran, may []string, err error) {
	records, err := b.Records.Known(ctx, serverAt)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(records)) {
		if ofEarlier(records[name]) {
			ran = append(ran, name)
		}
	}
	for _, name := range members {
		if _, ok := records[name]; !ok {
			may = append(may, name)
		}
	}
	if len(may) > 0 {
		if possible, err := b.Unrecorded(ctx); err != nil || !possible {
			may = nil
			return ran, may, err
		}
	}
	return ran, may, nil
}

// add adds the other keys of a server, and the kubeconfigs in its record so far that count yet.
func (k *serverKey) add(
	before []byte, others func() (machine []*x509.Certificate, admin *x509.Certificate), now time.Time,
) {
	machine, admin := others()
	for _, cert := range machine {
		k.Keys = append(k.Keys, pki.KeyOf(cert))
	}
	var was serverKey
	if json.Unmarshal(before, &was) != nil {
		was = serverKey{} // none, or a damaged one
	}
	now = now.UTC()
	own := adminKey{pki.KeyOf(admin), admin.NotAfter.UTC()}
	k.Admins = slices.DeleteFunc(was.Admins,
		func(a adminKey) bool { return a.Digest == own.Digest || now.After(a.Until) })
	k.Admins = append(k.Admins, own)
	k.Admins = k.Admins[max(0, len(k.Admins)-maxAdmins):]
}

// Current returns an error with join.ErrNotCurrent unless the certificate has the recorded key of a
// member of the store. Its chain was verified before.
func (b *Book) Current(ctx context.Context, cert *x509.Certificate) error {
	name := cert.Subject.CommonName
	if !b.IsServer(name) {
		return fmt.Errorf("%w: there is no server %q", join.ErrNotCurrent, name)
	}
	data, revision, err := b.Records.Get(ctx, serverAt+name)
	if err != nil {
		return fmt.Errorf("look up the key of server %q: %w", name, err)
	}
	if revision == 0 {
		may, err := b.Unrecorded(ctx)
		if err == nil && !may {
			err = fmt.Errorf("%w: server %q has recorded none yet", join.ErrNotCurrent, name)
		}
		return err
	}
	var key serverKey
	if err := json.Unmarshal(data, &key); err != nil {
		return fmt.Errorf("the record of the key of server %q: %w", name, err)
	}
	if is := pki.KeyOf(cert); key.Digest != is && !slices.Contains(key.Peer, is) {
		return fmt.Errorf("%w: server %q has another key", join.ErrNotCurrent, name)
	}
	return nil
}

// Forwarded returns the reason why another server may not make a change of the records, or nil:
// each writes down its own key alone. A server that wrote the key of another would get the keys
// that all servers share. folder is the place of the records in the store, and keys are those that
// are changed there.
func Forwarded(from, folder string, keys iter.Seq[string]) error {
	for key := range keys {
		if name, ok := strings.CutPrefix(key, folder+serverAt); ok && name != from {
			return fmt.Errorf("server %q may not change the record of server %q: each records its own key", from, name)
		}
	}
	return nil
}

// names returns the names of all records.
func (b *Book) names(ctx context.Context) (records []string, err error) {
	for _, at := range []string{joinedAt, serverAt} {
		all, err := b.Records.Known(ctx, at)
		if err != nil {
			return nil, err
		}
		for name := range all {
			records = append(records, at+name)
		}
	}
	return records, nil
}
