package page

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/internal/caller"
	"github.com/barque/barque/internal/pagelogin"
	"github.com/barque/barque/raftstore"
)

// Server is a server whose page may be opened.
type Server struct {
	Name string `json:"name"`
	URL  string `json:"url"` // of its API
}

// Link is the answer to a new link.
type Link struct {
	Made
	User    string   `json:"user"`
	Servers []Server `json:"servers"`
}

// Opened is the answer to a new session.
type Opened struct {
	Made
	User string `json:"user"`
}

// Self describes a caller to itself.
type Self struct {
	User   string   `json:"user"`
	Groups []string `json:"groups"`
	// Session is set if the caller has a session of the page. Otherwise the caller uses a token or
	// a certificate of its own, with all of its rights.
	Session bool      `json:"session"`
	Expires time.Time `json:"expires,omitzero"` // of the session
	// Server is the server that answers, and Servers are all that are known.
	Server  string   `json:"server"`
	Version string   `json:"version"`
	Servers []Server `json:"servers"`
}

// Logins serves the paths of package pagelogin.
type Logins struct {
	Sessions *Sessions
	Self     string // this server
	Version  string
	Servers  func() []Server
	Logger   *slog.Logger
}

// AddHandlers adds the handlers by their paths.
func (l *Logins) AddHandlers(to map[string]http.Handler) {
	to[pagelogin.LinkPath] = http.HandlerFunc(l.link)
	to[pagelogin.SessionPath] = http.HandlerFunc(l.session)
	to[pagelogin.SessionsPath] = http.HandlerFunc(l.sessions)
}

// OwnHeader has to come with a request that opens something. Another site's page cannot send it, so
// that site cannot open a session by the certificate in its visitor's browser.
const OwnHeader = "Barque-Page"

func (l *Logins) link(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "only POST is served here", http.StatusMethodNotAllowed)
		return
	}
	leaf, ok := l.shown(w, r)
	if !ok {
		return
	}
	made, err := l.Sessions.NewLink(r.Context(), leaf)
	if err == nil {
		l.Logger.Info("a link to the page was made", "linkID", made.ID, "user", leaf.Subject.CommonName)
	}
	answer(w, Link{made, leaf.Subject.CommonName, l.Servers()}, err)
}

func (l *Logins) session(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
		l.describe(w, r)
	case http.MethodPost:
		l.open(w, r)
	case http.MethodDelete:
		id := marked(r, pagelogin.SessionExtra)
		if id == "" {
			http.Error(w, "this request has no session of the page, which could end", http.StatusBadRequest)
			return
		}
		ended, err := l.Sessions.End(r.Context(), func(s Session) bool { return s.ID == id })
		l.logEnded(ended, r)
		answer(w, ended, err)
	default:
		http.Error(w, "only GET, POST and DELETE are served here", http.StatusMethodNotAllowed)
	}
}

func (l *Logins) describe(w http.ResponseWriter, r *http.Request) {
	who, _ := request.UserFrom(r.Context())
	self := Self{User: who.GetName(), Groups: who.GetGroups(), Server: l.Self, Version: l.Version, Servers: l.Servers()}
	if id := marked(r, pagelogin.SessionExtra); id != "" {
		self.Session = true
		all, err := l.Sessions.Known(r.Context())
		if err != nil {
			answer(w, nil, err)
			return
		}
		if i := slices.IndexFunc(all, func(s Session) bool { return s.ID == id }); i >= 0 {
			self.Expires = all[i].Expires
		}
	}
	answer(w, self, nil)
}

// open opens a session by a link, or by the certificate of the connection.
func (l *Logins) open(w http.ResponseWriter, r *http.Request) {
	link := marked(r, pagelogin.LinkExtra)
	if link == "" {
		leaf, ok := l.shown(w, r)
		if !ok {
			return
		}
		made, err := l.Sessions.Open(r.Context(), leaf)
		l.opened(w, made, leaf, "a certificate", err)
		return
	}
	made, leaf, err := l.Sessions.Redeem(r.Context(), link)
	l.opened(w, made, leaf, "link "+link, err)
}

func (l *Logins) opened(w http.ResponseWriter, made Made, leaf *x509.Certificate, by string, err error) {
	if err != nil {
		answer(w, nil, err)
		return
	}
	l.Logger.Info("a session of the page was opened", "sessionID", made.ID, "user", leaf.Subject.CommonName,
		"by", by, "expires", made.Expires)
	answer(w, Opened{made, leaf.Subject.CommonName}, nil)
}

// sessions serves administrators.
func (l *Logins) sessions(w http.ResponseWriter, r *http.Request) {
	if _, ok := extra.Master(w, r); !ok {
		return
	}
	switch r.Method {
	case http.MethodGet:
		all, err := l.Sessions.List(r.Context())
		answer(w, all, err)
	case http.MethodDelete:
		q := r.URL.Query()
		id, name := q.Get("id"), q.Get("user")
		if len(id) < shortestID && name == "" {
			http.Error(w, "the parameter id, at least the first 8 characters of an ID, or user is missing",
				http.StatusBadRequest)
			return
		}
		ended, err := l.Sessions.End(r.Context(), func(s Session) bool {
			return (id == "" || strings.HasPrefix(s.ID, id)) && (name == "" || s.User == name)
		})
		l.logEnded(ended, r)
		answer(w, ended, err)
	default:
		http.Error(w, "only GET and DELETE are served here", http.StatusMethodNotAllowed)
	}
}

// shortestID is the length of the shortest prefix that names a session.
const shortestID = 8

func (l *Logins) logEnded(ended []Session, r *http.Request) {
	who, _ := request.UserFrom(r.Context())
	for _, s := range ended {
		l.Logger.Info("a session of the page was ended", "sessionID", s.ID, "user", s.User, "by", who.GetName())
	}
}

// marked returns the ID of the caller's session or link; empty without one.
func marked(r *http.Request, key string) string {
	who, ok := request.UserFrom(r.Context())
	if !ok || len(who.GetExtra()[key]) == 0 {
		return ""
	}
	return who.GetExtra()[key][0]
}

// shown returns the client certificate that has authenticated the request. It has refused all other
// requests. The credential's ID is in the user's extra values, so a certificate of the connection
// beside another credential does not count.
func (l *Logins) shown(w http.ResponseWriter, r *http.Request) (*x509.Certificate, bool) {
	who, _ := request.UserFrom(r.Context())
	from, _ := caller.From(r.Context())
	if r.Header.Get(OwnHeader) == "" {
		http.Error(w, "the header "+OwnHeader+" is missing, without which nothing is opened", http.StatusForbidden)
		return nil, false
	}
	if who == nil || from == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 ||
		from.GetName() != who.GetName() || marked(r, pagelogin.SessionExtra) != "" ||
		!slices.Contains(who.GetExtra()[user.CredentialIDKey], credential(r.TLS.PeerCertificates[0])) {
		http.Error(w, "a session of the page stands for a client certificate, and this request has proven none: "+
			"with a token, open the page and log in with the token itself", http.StatusForbidden)
		return nil, false
	}
	return r.TLS.PeerCertificates[0], true
}

// credential is the ID of a certificate among a user's extra values, as the API machinery has it.
func credential(leaf *x509.Certificate) string {
	sum := sha256.Sum256(leaf.Raw)
	return "X509SHA256=" + hex.EncodeToString(sum[:])
}

func answer(w http.ResponseWriter, value any, err error) {
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case err == nil:
		extra.Answer(w, http.StatusOK, value)
	case errors.Is(err, pagelogin.ErrUnknown):
		http.Error(w, err.Error(), http.StatusUnauthorized)
	case errors.Is(err, ErrFull):
		http.Error(w, err.Error(), http.StatusTooManyRequests)
	case errors.Is(err, raftstore.ErrUnknownOutcome):
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
	default:
		extra.Unavailable(w, err)
	}
}
