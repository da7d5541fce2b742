package logins

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/time/rate"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// A hash is compared on one processor for some 50 ms. So passwords that are not cached are compared
// perSecond times, after attempts at once, over all clients: guessing is slow, and cannot take the
// server's processors. maxCost bounds a comparison to about a second.
const (
	perSecond = 5
	attempts  = 10
	maxCost   = 14
	remember  = time.Minute
)

// errTooMany is returned while too many passwords are being tried.
var errTooMany = errors.New("too many passwords are being tried: try again in a moment")

// account is a user of the file.
type account struct {
	hash []byte
	info user.DefaultInfo
}

// passwords authenticate by HTTP basic authentication. kube-apiserver has dropped it: the file was
// in clear, and read at the start only. Here it has hashes, and a change counts within seconds.
type passwords struct {
	current atomic.Pointer[table]
	limit   *rate.Limiter
	now     func() time.Time
}

// table is one content of the file.
type table struct {
	accounts map[string]*account
	none     *account // compared for unknown users, so that both take as long
	key      []byte   // of the sums of valid passwords, which mean nothing elsewhere

	mu   sync.Mutex
	good map[string]goodPassword // by user
}

type goodPassword struct {
	sum   [sha256.Size]byte
	until time.Time
}

func newPasswords(data []byte) (*passwords, error) {
	p := &passwords{limit: rate.NewLimiter(perSecond, attempts), now: time.Now}
	return p, p.replace(data)
}

// replace puts another content of the file into effect.
func (p *passwords) replace(data []byte) error {
	t, err := parsePasswords(data)
	if err != nil {
		return err
	}
	p.current.Store(t)
	return nil
}

// parsePasswords reads lines of USER:HASH[:GROUP,GROUP]. Empty lines and comments are left out.
func parsePasswords(data []byte) (*table, error) {
	t := &table{accounts: map[string]*account{}, key: make([]byte, sha256.Size), good: map[string]goodPassword{}}
	if _, err := rand.Read(t.key); err != nil {
		return nil, err
	}
	cost := bcrypt.MinCost
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.SplitN(line, ":", 3)
		if len(fields) < 2 || fields[0] == "" {
			return nil, fmt.Errorf("line %d: want USER:BCRYPT-HASH[:GROUP,GROUP], as 'htpasswd -B' writes", n)
		}
		a := &account{hash: []byte(fields[1]), info: user.DefaultInfo{Name: fields[0]}}
		its, err := bcrypt.Cost(a.hash)
		switch {
		case err != nil:
			return nil,
				fmt.Errorf("line %d: the hash of user %q is none of bcrypt: make it with 'htpasswd -nB USER'", n,
					a.info.Name)
		case its > maxCost:
			return nil,
				fmt.Errorf("line %d: the hash of user %q has the cost %d: want %d at most, or a login takes seconds", n,
					a.info.Name, its, maxCost)
		case t.accounts[a.info.Name] != nil:
			return nil, fmt.Errorf("line %d: user %q is there twice", n, a.info.Name)
		}
		if len(fields) == 3 {
			for _, g := range strings.Split(fields[2], ",") {
				if g = strings.TrimSpace(g); g != "" {
					a.info.Groups = append(a.info.Groups, g)
				}
			}
		}
		if err := fromFile(fmt.Sprintf("line %d", n), &a.info); err != nil {
			return nil, err
		}
		t.accounts[a.info.Name] = a
		cost = max(cost, its) // an unknown user is to take as long as any
	}
	if lines.Err() != nil {
		return nil,
			fmt.Errorf("it has a line of more than %d bytes: want USER:BCRYPT-HASH[:GROUP,GROUP]",
				bufio.MaxScanTokenSize)
	}
	if len(t.accounts) == 0 {
		return nil, errors.New("it has no user: want lines of USER:BCRYPT-HASH[:GROUP,GROUP], as 'htpasswd -B' writes")
	}
	hash, err := bcrypt.GenerateFromPassword(t.key[:16], cost)
	t.none = &account{hash: hash}
	return t, err
}

// AuthenticateRequest implements authenticator.Request.
func (p *passwords) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	name, password, ok := r.BasicAuth()
	if !ok {
		return nil, false, nil
	}
	t := p.current.Load()
	a, exists := t.accounts[name]
	if !exists {
		a = t.none
	}
	sum := t.sum(name, password)
	if !t.remembers(name, sum, p.now()) {
		if !p.limit.AllowN(p.now(), 1) {
			return nil, false, errTooMany
		}
		if err := bcrypt.CompareHashAndPassword(a.hash, []byte(password)); err != nil || !exists {
			return nil, false, errors.New("wrong user or password")
		}
		t.mu.Lock()
		t.good[name] = goodPassword{sum, p.now().Add(remember)}
		t.mu.Unlock()
	}
	r.Header.Del("Authorization") // no later handler or backend must see it
	return &authenticator.Response{User: &user.DefaultInfo{Name: a.info.Name, Groups: a.info.Groups}}, true, nil
}

func (t *table) sum(name, password string) (out [sha256.Size]byte) {
	mac := hmac.New(sha256.New, t.key)
	fmt.Fprintf(mac, "%d:%s%s", len(name), name, password)
	mac.Sum(out[:0])
	return out
}

// remembers reports whether this password was valid a moment ago.
func (t *table) remembers(name string, sum [sha256.Size]byte, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	known, ok := t.good[name]
	return ok && now.Before(known.until) && hmac.Equal(known.sum[:], sum[:])
}
