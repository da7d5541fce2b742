package revocation

import (
	"bytes"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/pki"
)

// Kinds of entries.
const (
	Server      = "server"
	Agent       = "agent"
	Certificate = "certificate"
	User        = "user"
)

// Entry revokes certificates.
type Entry struct {
	Kind string `json:"kind"`
	// Name is that of the server, agent or user, or the common name of the certificate.
	Name string `json:"name"`
	// ID is that of the server in the store, or the certificate's serial number in hexadecimal.
	ID string `json:"id,omitempty"`
	// Revision is that of the store up to which the certificates of an agent or user were issued
	// that are void.
	// Of other entries it is that at which they were made.
	Revision uint64 `json:"revision"`
	// Admitted are the keys of gossip of the agents that have joined by the name since.
	Admitted [][]byte `json:"admitted,omitempty"`
	// Key is the digest of the agent's recorded key when it was revoked. With Readmitted an
	// operator has taken the act back for the holder of that key. An entry of one certificate of an
	// agent needs no key.
	Key        string `json:"key,omitempty"`
	Readmitted bool   `json:"readmitted,omitempty"`
	// Provisional is set until Revision is that at which the entry was made, see voidUpTo. The
	// leader finishes an entry whose writer has failed before.
	Provisional bool `json:"provisional,omitempty"`
	// Proven is the revision in a later certificate of the agent. It proves an admission of which
	// the store has lost the record, as after a restored backup.
	Proven uint64 `json:"proven,omitempty"`
	// Back is set while a server of the name is a member again. Certificates of earlier versions do
	// not have an ID, and count then.
	Back bool `json:"back,omitempty"`

	At    time.Time `json:"at"`
	Until time.Time `json:"until"` // the end of the last certificate that it could mean
	By    string    `json:"by"`    // the user, or the server that led
	Why   string    `json:"why,omitempty"`
	// CAs are the digests of those that could have issued it. Empty means any.
	CAs []string `json:"cas,omitempty"`
}

// key is the entry's identity, and the name of its record.
func (e *Entry) key() string {
	switch e.Kind {
	case Agent:
		return Agent + "/" + e.Name
	case User:
		return userKey(e.Name)
	}
	return e.Kind + "/" + e.ID
}

// userKey is the key of a user's entry. A name may have slashes and any other characters.
func userKey(name string) string { return User + "/" + url.PathEscape(name) }

// admits reports whether a machine has joined as the agent since, or was let in again.
func (e *Entry) admits() bool { return len(e.Admitted) > 0 || e.Proven > 0 || e.Readmitted }

// over reports whether the entry has no certificate left to mean.
func (e *Entry) over(now time.Time, believed []string) bool {
	believes := slices.ContainsFunc(e.CAs, func(ca string) bool { return slices.Contains(believed, ca) })
	return now.After(e.Until) || len(e.CAs) > 0 && len(believed) > 0 && !believes
}

// Error is the reason why a genuine certificate does not count.
type Error struct{ Entry Entry }

func (e *Error) Error() string {
	subject := fmt.Sprintf("the certificates of %s %q are", e.Entry.Kind, e.Entry.Name)
	if e.Entry.Kind == Certificate {
		subject = fmt.Sprintf("the certificate %s of %q is", e.Entry.ID, e.Entry.Name)
	}
	text := fmt.Sprintf("%s revoked since %s", subject, e.Entry.At.UTC().Format(time.RFC3339))
	if e.Entry.Why != "" {
		text += ": " + e.Entry.Why
	}
	switch e.Entry.Kind {
	case Server, Agent:
		text += "; to let the machine in again, let it join with a new token"
	case User:
		text += "; a certificate that `barque user add` makes from now on counts"
	}
	return text
}

// Entries are a set of entries, which does not change.
type Entries struct {
	// Version is higher after each change. Servers number on their own, by the store's revision.
	Version uint64  `json:"version"`
	List    []Entry `json:"entries"`

	byKey  map[string]*Entry
	legacy map[string]*Entry // of servers, by name
}

// ForAgents returns the entries with the fields that agents judge by, and no more.
func (e *Entries) ForAgents() *Entries {
	out := &Entries{Version: e.Version, List: slices.Clone(e.List)}
	for i := range out.List {
		is := &out.List[i]
		is.By, is.Why, is.CAs = "", "", nil
		if !is.Readmitted {
			is.Key = ""
		}
	}
	return out
}

// UnmarshalJSON implements json.Unmarshaler. The entries are ready for Check.
func (e *Entries) UnmarshalJSON(data []byte) error {
	type plain Entries
	if err := json.Unmarshal(data, (*plain)(e)); err != nil {
		return err
	}
	e.index()
	return nil
}

// index prepares the entries for questions.
func (e *Entries) index() *Entries {
	slices.SortFunc(e.List, func(a, b Entry) int { return strings.Compare(a.key(), b.key()) })
	e.byKey, e.legacy = make(map[string]*Entry, len(e.List)), map[string]*Entry{}
	for i := range e.List {
		is := &e.List[i]
		e.byKey[is.key()] = is
		if is.Kind == Server && !is.Back {
			e.legacy[is.Name] = is
		}
	}
	return e
}

// Serial returns the entry that revokes the certificate of the serial number; nil without one.
func (e *Entries) Serial(serial string) *Entry {
	is := e.byKey[Certificate+"/"+serial]
	if is == nil || is.Readmitted {
		return nil
	}
	return is
}

const serversGroup = "barque:servers"

// Check returns an *Error for a certificate that is revoked. Its chain is verified elsewhere.
func (e *Entries) Check(cert *x509.Certificate) error {
	if len(e.List) == 0 {
		return nil
	}
	if is := e.Serial(SerialOf(cert)); is != nil {
		return &Error{*is}
	}
	id, subject := pki.HolderOf(cert), cert.Subject
	if id != "" {
		if is := e.byKey[Server+"/"+id]; is != nil {
			return &Error{*is}
		}
		return nil
	}
	if is := e.legacy[subject.CommonName]; is != nil && slices.Contains(subject.Organization, serversGroup) {
		return &Error{*is}
	}
	if is := e.byKey[userKey(subject.CommonName)]; is != nil && pki.RevisionOf(cert) <= is.Revision &&
		!slices.Contains(subject.Organization, serversGroup) {
		return &Error{*is}
	}
	name, node := strings.CutPrefix(subject.CommonName, pki.NodeUser)
	if !node || !slices.Contains(subject.Organization, pki.NodesGroup) {
		return nil
	}
	if is := e.byKey[Agent+"/"+name]; is != nil && pki.RevisionOf(cert) <= is.Revision &&
		(!is.Readmitted || is.Key != pki.KeyOf(cert)) {
		return &Error{*is}
	}
	if is := e.legacy[name]; is != nil && pki.RevisionOf(cert) == 0 { // the kubelet of a removed server
		return &Error{*is}
	}
	return nil
}

// checkCredential is check for a credential of gossip.
func (e *Entries) checkCredential(c pki.Credential) error {
	is := e.legacy[c.Name]
	if c.Role == pki.RoleAgent {
		is = e.byKey[Agent+"/"+c.Name]
	}
	// The key of gossip of an agent that was let in again, or proven, is not known.
	if is == nil || is.Proven > 0 || is.Readmitted ||
		slices.ContainsFunc(is.Admitted, func(key []byte) bool { return bytes.Equal(key, c.Public) }) {
		return nil
	}
	return &Error{*is}
}

// equal compares the entries as they are written down: times in other zones are the same.
func (e *Entries) equal(other *Entries) bool {
	if len(e.List) == 0 || len(other.List) == 0 {
		return len(e.List) == len(other.List)
	}
	a, errA := json.Marshal(e.List)
	b, errB := json.Marshal(other.List)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// SerialOf returns the serial number of a certificate as entries have it.
func SerialOf(cert *x509.Certificate) string { return hex.EncodeToString(cert.SerialNumber.Bytes()) }
