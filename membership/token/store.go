package token

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/pki"
)

// Records is the interface of the store: small records by name. A write names the revision of the
// record that it replaces, 0 for none, and the term of the leader that makes it, 0 for any server.
// won is false if another write was faster.
type Records interface {
	Get(ctx context.Context, name string) (value []byte, revision uint64, err error)
	List(ctx context.Context, under string) (map[string][]byte, error)
	Put(ctx context.Context, name string, value []byte, revision, term uint64) (won bool, err error)
	Delete(ctx context.Context, name string, revision, term uint64) (won bool, err error)
}

// Names of records.
const (
	formRecord = "form"   // its presence ends the time of former tokens
	tokensAt   = "token/" // followed by the ID
)

// Store keeps the tokens of the cluster. All servers share it.
type Store struct {
	Records Records
	// Client is for former tokens.
	Client func() (kubernetes.Interface, error)
	// CAs returns the digests of the cluster's CAs; the first one issues.
	CAs func() []string
	Now func() time.Time
}

// record is a stored token.
type record struct {
	Role        string    `json:"role"`
	Key         []byte    `json:"key"` // public half of pki.Token.Key
	CA          string    `json:"ca"`
	Created     time.Time `json:"created"`
	CreatedBy   string    `json:"createdBy,omitempty"`
	Expires     time.Time `json:"expires,omitzero"`
	Limited     bool      `json:"limited,omitempty"`
	UsesLeft    int       `json:"usesLeft,omitempty"`
	Used        []use     `json:"used,omitempty"` // if Limited, within AttemptTime
	Description string    `json:"description,omitempty"`
}

// use is a counted attempt.
type use struct {
	Attempt string    `json:"attempt"` // digest
	At      time.Time `json:"at"`
}

func (r *record) info(id string) Info {
	return Info{ID: id, Role: r.Role, Expires: r.Expires, UsesLeft: r.UsesLeft, Limited: r.Limited, Created: r.Created,
		CreatedBy:   r.CreatedBy,
		Description: r.Description, CADigest: r.CA}
}

// Create makes a token on behalf of a user. The result is the only place of its secret.
func (s *Store) Create(ctx context.Context, spec Spec, by string) (Made, error) {
	if err := spec.Check(); err != nil {
		return Made{}, err
	}
	now := s.Now().UTC().Truncate(time.Second)
	t, err := pki.NewToken(s.CAs()[0])
	if err != nil {
		return Made{}, err
	}
	key, err := t.Key()
	if err != nil {
		return Made{}, err
	}
	r := record{Role: spec.Role, Key: key.Public().(ed25519.PublicKey), CA: t.CADigest, Created: now, CreatedBy: by,
		Limited: spec.Uses > 0, UsesLeft: spec.Uses, Description: spec.Description}
	made := Made{ID: t.ID, Token: t.String(), Role: spec.Role, Uses: spec.Uses, Description: spec.Description}
	if spec.TTL > 0 {
		r.Expires = now.Add(spec.TTL)
		made.Expires = &r.Expires
	}
	won, err := s.put(ctx, t.ID, &r, 0)
	if err == nil && !won {
		err = fmt.Errorf("the ID %s, which was drawn at random, is in use: make it again", t.ID)
	}
	if err != nil {
		return Made{}, fmt.Errorf("store the join token: %w", err)
	}
	return made, nil
}

func (s *Store) put(ctx context.Context, id string, r *record, revision uint64) (won bool, err error) {
	data, err := json.Marshal(r)
	if err != nil {
		return false, err
	}
	return s.Records.Put(ctx, tokensAt+id, data, revision, 0)
}

// List returns all tokens, expired ones included.
func (s *Store) List(ctx context.Context) ([]Info, error) {
	all, err := s.Records.List(ctx, tokensAt)
	if err != nil {
		return nil, err
	}
	var out []Info
	for _, id := range slices.Sorted(maps.Keys(all)) {
		r, err := decode(id, all[id])
		if err != nil {
			return nil, err
		}
		out = append(out, r.info(id))
	}
	count, err := s.FormerCount(ctx)
	if err != nil || !count {
		return out, err
	}
	client, err := s.Client()
	if err != nil {
		return nil, err
	}
	former, err := formerTokens{client}.list(ctx)
	out = append(out, former...)
	slices.SortStableFunc(out, func(a, b Info) int { return strings.Compare(a.ID, b.ID) })
	return out, err
}

func decode(id string, data []byte) (*record, error) {
	r := new(record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("the record of the join token %s: %w", id, err)
	}
	return r, nil
}

// Delete removes a token by its ID, and reports whether there was one.
func (s *Store) Delete(ctx context.Context, id string) (was bool, err error) {
	for {
		_, revision, err := s.Records.Get(ctx, tokensAt+id)
		if err != nil {
			return was, err
		}
		if revision == 0 {
			break
		}
		if was, err = s.Records.Delete(ctx, tokensAt+id, revision, 0); err != nil {
			return was, err
		}
	}
	count, err := s.FormerCount(ctx)
	if err != nil || !count {
		return was, err
	}
	client, err := s.Client()
	if err != nil {
		return was, err
	}
	former, err := formerTokens{client}.delete(ctx, id)
	return was || former, err
}

// FormerCount reports whether former tokens still count.
func (s *Store) FormerCount(ctx context.Context) (bool, error) {
	_, revision, err := s.Records.Get(ctx, formRecord)
	return revision == 0, err
}

// Proof is a machine's proof that it holds a token.
type Proof struct {
	ID string
	// Signed is the request, and Signature that of the token's key.
	Signed, Signature []byte
	// Secret is that of a former token.
	Secret string
}

// Check checks that the token lets a machine join now. A token pins one CA, but a holder of its
// secret may omit the pin: the record has it.
func (s *Store) Check(ctx context.Context, p Proof, a Attempt) error {
	return s.use(ctx, p, a, false)
}

// Use checks the token as Check does, and counts the use.
func (s *Store) Use(ctx context.Context, p Proof, a Attempt) error {
	return s.use(ctx, p, a, true)
}

func (s *Store) use(ctx context.Context, p Proof, a Attempt, count bool) error {
	if p.Secret != "" {
		return s.useFormer(ctx, p, a, count)
	}
	if !IsID(p.ID) {
		return ErrUnknown
	}
	for ctx.Err() == nil {
		now := s.Now()
		data, revision, err := s.Records.Get(ctx, tokensAt+p.ID)
		if err != nil {
			return fmt.Errorf("look the join token up: %w", err)
		}
		r := &record{Key: nobody}
		if revision != 0 {
			if r, err = decode(p.ID, data); err != nil {
				return err
			}
		}
		if len(r.Key) != ed25519.PublicKeySize || !ed25519.Verify(r.Key, p.Signed, p.Signature) || revision == 0 {
			return ErrUnknown
		}
		digest := a.digest()
		counted := slices.ContainsFunc(r.Used,
			func(u use) bool { return digest != "" && u.Attempt == digest && now.Sub(u.At) <= AttemptTime })
		if err := r.info(p.ID).lets(a, s.CAs(), counted, now); err != nil {
			return err
		}
		if !count || !r.Limited || counted {
			return nil
		}
		r.Used = slices.DeleteFunc(r.Used, func(u use) bool { return now.Sub(u.At) > AttemptTime })
		if digest != "" {
			r.Used = append(r.Used, use{digest, now.UTC().Truncate(time.Second)})
		}
		r.UsesLeft--
		won, err := s.put(ctx, p.ID, r, revision)
		if err != nil {
			return fmt.Errorf("count the use of the join token: %w", err)
		}
		if won {
			return nil
		}
	}
	return context.Cause(ctx)
}

// nobody is a public key against which unknown IDs are checked, so that they take as long as known
// ones.
var nobody = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public().(ed25519.PublicKey)

func (s *Store) useFormer(ctx context.Context, p Proof, a Attempt, count bool) error {
	still, err := s.FormerCount(ctx)
	if err != nil {
		return fmt.Errorf("look the join token up: %w", err)
	}
	if !still {
		return ErrFormer
	}
	client, err := s.Client()
	if err != nil {
		return err
	}
	return formerTokens{client}.use(ctx, s.CAs(), p, a, s.Now(), count)
}

// lets returns why a token with this record does not let the attempt in; its holder has proven to
// hold it.
func (i Info) lets(a Attempt, cas []string, counted bool, now time.Time) error {
	switch {
	case !slices.Contains(cas, i.CADigest):
		return ErrFormerCA
	case !i.Expires.IsZero() && now.After(i.Expires):
		return ErrExpired
	case i.Role != a.Role:
		return fmt.Errorf("%w: it is for %q, this machine joins as %q", ErrRole, i.Role, a.Role)
	case i.Limited && i.UsesLeft <= 0 && !counted:
		return ErrUsedUp
	}
	return nil
}

// IsRefusal reports whether the error is a token's fault.
func IsRefusal(err error) bool {
	return slices.ContainsFunc([]error{ErrUnknown, ErrExpired, ErrUsedUp, ErrRole, ErrFormerCA, ErrFormer},
		func(e error) bool { return errors.Is(err, e) })
}
