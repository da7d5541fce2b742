package page

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/internal/pagelogin"
)

const (
	// LinkTime is the validity of a link.
	LinkTime = time.Minute
	// SessionTime bounds a session: a working day. It ends with its certificate, if that is sooner.
	SessionTime = 12 * time.Hour
	// userSessions is the number of links and sessions that a user may have. The oldest one ends
	// when there is another.
	userSessions = 32
	// allSessions bounds the records in the store. Each has a certificate, about a kilobyte.
	allSessions = 4096
	// lookupTime bounds the search for a session that this server does not have yet.
	lookupTime = 2 * time.Second
	// parsedCertificates is the number of certificates that are kept parsed.
	parsedCertificates = 1024
)

// ErrFull is returned if there are too many sessions in the whole cluster.
var ErrFull = fmt.Errorf(
	"there are %d log-ins of the page: end some with 'barque ui end', or wait until they end by themselves", allSessions)

// Records is the interface of the store: small records by name. A write names the revision of the
// record that it replaces, 0 for none. won is false if another write was faster.
type Records interface {
	Get(ctx context.Context, name string) (value []byte, revision uint64, err error)
	List(ctx context.Context, under string) (map[string][]byte, error)
	// Known is List as this server has it, without asking others.
	Known(ctx context.Context, under string) (map[string][]byte, error)
	Put(ctx context.Context, name string, value []byte, revision, term uint64) (won bool, err error)
	Delete(ctx context.Context, name string, revision, term uint64) (won bool, err error)
}

// Names of records. The hash of the token's secret follows, which is the ID.
const (
	linksAt    = "link/"
	sessionsAt = "session/"
)

// record is a stored link or session.
type record struct {
	User        string    `json:"user"`
	Certificate []byte    `json:"certificate"` // DER
	Created     time.Time `json:"created"`
	Expires     time.Time `json:"expires"`
}

// Session describes a session. It has no secret.
type Session struct {
	ID      string    `json:"id"`
	User    string    `json:"user"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
}

// Made is a new link or session with its secret.
type Made struct {
	ID      string    `json:"id"`
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// Sessions are the log-ins of the page. All servers share them.
type Sessions struct {
	records Records
	now     func() time.Time

	mu     sync.Mutex
	parsed map[string]*x509.Certificate // by the record's name
}

// NewSessions returns the sessions in these records.
func NewSessions(records Records, now func() time.Time) *Sessions {
	return &Sessions{records: records, now: now, parsed: map[string]*x509.Certificate{}}
}

// NewLink makes a link for the user of a certificate.
func (s *Sessions) NewLink(ctx context.Context, leaf *x509.Certificate) (Made, error) {
	return s.add(ctx, linksAt, pagelogin.LinkPrefix, leaf, LinkTime)
}

// Open opens a session for the user of a certificate.
func (s *Sessions) Open(ctx context.Context, leaf *x509.Certificate) (Made, error) {
	return s.add(ctx, sessionsAt, pagelogin.SessionPrefix, leaf, SessionTime)
}

// Redeem opens a session by the ID of a link, which ends. Of several at once, one succeeds. The
// others, and those for an unknown link, get pagelogin.ErrUnknown.
func (s *Sessions) Redeem(ctx context.Context, link string) (Made, *x509.Certificate, error) {
	value, revision, err := s.records.Get(ctx, linksAt+link)
	if err != nil {
		return Made{}, nil, err
	}
	leaf, err := s.certificate(linksAt+link, value)
	if err != nil {
		return Made{}, nil, err
	}
	won, err := s.records.Delete(ctx, linksAt+link, revision, 0)
	switch {
	case err != nil:
		return Made{}, nil, err
	case !won:
		return Made{}, nil, pagelogin.ErrUnknown
	}
	made, err := s.Open(ctx, leaf)
	return made, leaf, err
}

func (s *Sessions) add(
	ctx context.Context, at, prefix string, leaf *x509.Certificate, lasts time.Duration,
) (Made, error) {
	if err := s.makeRoom(ctx, leaf.Subject.CommonName); err != nil {
		return Made{}, err
	}
	now := s.now().UTC().Truncate(time.Second)
	r := record{User: leaf.Subject.CommonName, Certificate: leaf.Raw, Created: now, Expires: now.Add(lasts)}
	if leaf.NotAfter.Before(r.Expires) {
		r.Expires = leaf.NotAfter.UTC()
	}
	value, err := json.Marshal(r)
	if err != nil {
		return Made{}, err
	}
	secret := make([]byte, secretBytes)
	if _, err := rand.Read(secret); err != nil {
		return Made{}, err
	}
	token := prefix + base64.RawURLEncoding.EncodeToString(secret)
	won, err := s.records.Put(ctx, at+idOf(token), value, 0, 0)
	if err == nil && !won {
		err = errors.New("another log-in of the page has the same secret: try again")
	}
	return Made{ID: idOf(token), Token: token, Expires: r.Expires}, err
}

// makeRoom removes records that have ended, and the oldest ones of a user with too many.
func (s *Sessions) makeRoom(ctx context.Context, name string) error {
	all, err := s.records.List(ctx, "")
	if err != nil {
		return err
	}
	var own []string
	created, left := map[string]time.Time{}, 0
	for at, value := range all {
		var r record
		if json.Unmarshal(value, &r) != nil || !s.now().Before(r.Expires) {
			if err := s.remove(ctx, at); err != nil {
				return err
			}
			continue
		}
		left++
		if r.User == name {
			own, created[at] = append(own, at), r.Created
		}
	}
	slices.SortFunc(own, func(a, b string) int { return created[a].Compare(created[b]) })
	for len(own) >= userSessions {
		if err := s.remove(ctx, own[0]); err != nil {
			return err
		}
		own, left = own[1:], left-1
	}
	if left >= allSessions {
		return ErrFull
	}
	return nil
}

// remove removes a record, whatever it has. One that is gone is no error.
func (s *Sessions) remove(ctx context.Context, at string) error {
	_, revision, err := s.records.Get(ctx, at)
	if err != nil || revision == 0 {
		return err
	}
	_, err = s.records.Delete(ctx, at, revision, 0)
	return err
}

// idOf is the ID of a token: a hash, from which the token does not follow.
// secretBytes is the length of the random part of a token.
const secretBytes = 24

func idOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:16])
}

// Find returns the certificate for which a token stands, and the extra value that marks its user.
//
// The server's own copy of the store is enough: a session lasts while there is no leader. If the
// copy does not have it, the newest state is read: another server may have opened it just now.
func (s *Sessions) Find(ctx context.Context, token string) (leaf *x509.Certificate, key, id string, err error) {
	at, key, prefix := sessionsAt, pagelogin.SessionExtra, pagelogin.SessionPrefix
	if strings.HasPrefix(token, pagelogin.LinkPrefix) {
		at, key, prefix = linksAt, pagelogin.LinkExtra, pagelogin.LinkPrefix
	}
	secret, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(token, prefix))
	if err != nil || len(secret) != secretBytes { // strangers' texts cost no look-up
		return nil, "", "", pagelogin.ErrUnknown
	}
	id = idOf(token)
	known, err := s.records.Known(ctx, at+id)
	if err != nil {
		return nil, "", "", fmt.Errorf("%w: %w", pagelogin.ErrLookup, err)
	}
	value, ok := known[""]
	if !ok {
		ctx, cancel := context.WithTimeout(ctx, lookupTime)
		defer cancel()
		if value, _, err = s.records.Get(ctx, at+id); err != nil {
			return nil, "", "", fmt.Errorf("%w: %w", pagelogin.ErrLookup, err)
		}
	}
	leaf, err = s.certificate(at+id, value)
	return leaf, key, id, err
}

// certificate returns the certificate of a record that has not ended.
func (s *Sessions) certificate(at string, value []byte) (*x509.Certificate, error) {
	var r record
	if len(value) == 0 || json.Unmarshal(value, &r) != nil || !s.now().Before(r.Expires) {
		return nil, pagelogin.ErrUnknown
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if leaf := s.parsed[at]; leaf != nil {
		return leaf, nil
	}
	leaf, err := x509.ParseCertificate(r.Certificate)
	if err != nil {
		return nil, fmt.Errorf("the certificate of a log-in of the page: %w", err)
	}
	if len(s.parsed) >= parsedCertificates {
		clear(s.parsed)
	}
	s.parsed[at] = leaf
	return leaf, nil
}

// List returns the open sessions, the newest first.
func (s *Sessions) List(ctx context.Context) ([]Session, error) {
	all, err := s.records.List(ctx, sessionsAt)
	return s.open(all), err
}

// Known is List as this server has it, without asking others.
func (s *Sessions) Known(ctx context.Context) ([]Session, error) {
	all, err := s.records.Known(ctx, sessionsAt)
	return s.open(all), err
}

func (s *Sessions) open(all map[string][]byte) []Session {
	out := []Session{}
	for id, value := range all {
		var r record
		if json.Unmarshal(value, &r) == nil && s.now().Before(r.Expires) {
			out = append(out, Session{ID: id, User: r.User, Created: r.Created, Expires: r.Expires})
		}
	}
	slices.SortFunc(out, func(a, b Session) int {
		if c := b.Created.Compare(a.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out
}

// End ends the sessions that match, and returns them.
func (s *Sessions) End(ctx context.Context, matches func(Session) bool) ([]Session, error) {
	all, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	ended := []Session{}
	for _, is := range all {
		if matches(is) {
			if err := s.remove(ctx, sessionsAt+is.ID); err != nil {
				return ended, err
			}
			ended = append(ended, is)
		}
	}
	return ended, nil
}
