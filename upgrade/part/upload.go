package part

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/barque/barque/upgrade/release"
)

// Offer is a release that an administrator brings to a server.
type Offer struct {
	Sums      []byte `json:"sums"`
	Signature []byte `json:"signature,omitempty"`
	// Unsigned lets a server without release keys take it by the administrator's word.
	Unsigned bool `json:"unsigned,omitempty"`
	// Names are the archives that are brought.
	Names []string `json:"names"`
}

// Offered is the answer to an offer.
type Offered struct {
	Server   string `json:"server"`
	Version  string `json:"version"`
	Checksum string `json:"checksum"`
	// Have is the number of bytes of each archive that the server has. Missing are the archives
	// that are not whole.
	Have    map[string]int64 `json:"have"`
	Missing []string         `json:"missing,omitempty"`
}

// Upload takes releases from administrators. The caller has been checked.
type Upload struct {
	Self     string
	Releases Releases
	Keys     release.Keys
}

// Files serves FilesPath but for its GET: POST is an Offer, and PUT a part of an archive.
func (u *Upload) Files(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
		u.offer(w, r)
	case http.MethodPut:
		u.put(w, r)
	default:
		http.Error(w, "only GET, POST and PUT are served here", http.StatusMethodNotAllowed)
	}
}

func (u *Upload) offer(w http.ResponseWriter, r *http.Request) {
	var o Offer
	if err := json.NewDecoder(io.LimitReader(r.Body, 4*release.MaxFile)).Decode(&o); err != nil {
		http.Error(w, "the offer cannot be read: "+err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := u.Take(&o)
	switch {
	case errors.Is(err, release.ErrSignature):
		http.Error(w, err.Error(), http.StatusForbidden)
	case err != nil:
		http.Error(w, err.Error(), http.StatusConflict)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // a client that has gone offers it again
	}
}

// Verify believes the checksums of an offer, and reads them.
func (u *Upload) Verify(o *Offer) (*release.Release, error) {
	if len(u.Keys) > 0 {
		if err := u.Keys.Verify(o.Sums, o.Signature); err != nil {
			return nil, fmt.Errorf("server %s: %w", u.Self, err)
		}
	} else if !o.Unsigned {
		return nil, fmt.Errorf("%w: server %s has no --release-key; --unsigned lets it believe an administrator",
			release.ErrSignature, u.Self)
	}
	rel, err := release.Parse(o.Sums)
	if err == nil && !versionName.MatchString(rel.Version) {
		err = fmt.Errorf("version %q: %w", rel.Version, ErrName)
	}
	return rel, err
}

// Take takes an offer: archives that have come whole count from now on. It may be repeated.
func (u *Upload) Take(o *Offer) (*Offered, error) {
	rel, err := u.Verify(o)
	if err != nil {
		return nil, err
	}
	answer := &Offered{Server: u.Self, Version: rel.Version, Checksum: release.Digest(o.Sums), Have: map[string]int64{}}
	if err := u.Releases.Write(rel.Version, release.SignatureFile, o.Signature); err != nil {
		return nil, err
	}
	if err := u.Releases.Write(rel.Version, release.SumsFile, o.Sums); err != nil {
		return nil, err
	}
	for _, name := range o.Names {
		digest := rel.Digests[name]
		if digest == "" {
			return nil, fmt.Errorf("%s has no %s", release.SumsFile, name)
		}
		size, whole, err := u.Releases.Size(rel.Version, name)
		if err != nil {
			return nil, err
		}
		if !whole && size == 0 {
			answer.Missing = append(answer.Missing, name)
			continue
		}
		if u.Releases.Take(rel.Version, name, digest) != nil { // the rest of it is still to come
			size, _, err = u.Releases.Size(rel.Version, name)
			answer.Missing = append(answer.Missing, name)
		}
		if err != nil {
			return nil, err
		}
		answer.Have[name] = size
	}
	return answer, nil
}

// put takes a part. The server of an offer is named, since a load balancer may choose another one.
func (u *Upload) put(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if on := query.Get("on"); on != u.Self {
		http.Error(w, fmt.Sprintf("this is %s, and not %s", u.Self, on), http.StatusMisdirectedRequest)
		return
	}
	offset, err := strconv.ParseInt(query.Get("offset"), 10, 64)
	if err != nil || offset < 0 {
		http.Error(w, "the parameter offset is no number", http.StatusBadRequest)
		return
	}
	if _, err := u.Releases.Append(query.Get("version"), query.Get("name"), offset, r.Body); err != nil {
		status := http.StatusInternalServerError
		var wrong *OffsetError
		switch {
		case errors.As(err, &wrong):
			status = http.StatusConflict
		case errors.Is(err, ErrName):
			status = http.StatusBadRequest
		}
		http.Error(w, err.Error(), status)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// Bring gets a release from the folder of a URL. It must be signed by a key of this server. It
// returns the checksums and the signature.
func (u *Upload) Bring(ctx context.Context, url, version string) (files [2][]byte, err error) {
	if len(u.Keys) == 0 {
		return files, &LastingError{fmt.Errorf("%w: server %s has no --release-key, without which no release from a URL is taken",
			release.ErrSignature, u.Self)}
	}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second}}
	base := strings.TrimSuffix(url, "/") + "/"
	for i, name := range []string{release.SumsFile, release.SignatureFile} {
		if files[i], err = FetchSmall(ctx, client, base+name, "", ""); err != nil {
			return files, err
		}
	}
	o := &Offer{Sums: files[0], Signature: files[1]}
	rel, err := u.Verify(o)
	if err == nil && rel.Version != version {
		err = fmt.Errorf("the release at %s is of version %s, and not %s", url, rel.Version, version)
	}
	if err != nil {
		return files, &LastingError{err}
	}
	for _, arch := range rel.Architectures() {
		name := rel.Archives[arch]
		if err := u.Releases.fetch(ctx, client, []string{base + name}, version, name, rel.Digests[name],
			func(int64) {}); err != nil {
			return files, err
		}
	}
	_, err = u.Take(o)
	return files, err
}
