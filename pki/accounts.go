package pki

import (
	"crypto"
	"crypto/x509"
	"fmt"
	"slices"
	"time"
)

// AccountKeyGrace is how long a former key of service accounts still verifies tokens. Kubelets
// replace every token of a pod within a day; longer-lived tokens are void after it.
const AccountKeyGrace = 48 * time.Hour

// FormerKey is a public key of service accounts' tokens that signs no more.
type FormerKey struct {
	Key   string    `json:"key"`   // PEM
	Until time.Time `json:"until"` // the end of its validity; zero: it never verified
}

// WithAccountKey returns the bundle with the key of a new cluster's service accounts.
func (b Bundle) WithAccountKey(public crypto.PublicKey) (Bundle, error) {
	text, err := marshalPublic(public)
	b.AccountKeys = []string{text}
	return b, err
}

// formerAccountKeys returns the former keys that still verify, and the keys that become former now.
func (b Bundle) formerAccountKeys(now time.Time) []FormerKey {
	var out []FormerKey
	for _, f := range b.FormerAccountKeys {
		if now.Before(f.Until) {
			out = append(out, f)
		}
	}
	for _, key := range b.AccountKeys[min(1, len(b.AccountKeys)):] {
		out = append(out, FormerKey{key, now.Add(AccountKeyGrace).UTC().Truncate(time.Second)})
	}
	return out
}

// Signer is the digest of the key that signs the tokens of service accounts; empty without one.
func (b Bundle) Signer() string {
	digests, err := accountDigests(b.AccountKeys[:min(1, len(b.AccountKeys))])
	if err != nil || len(digests) == 0 {
		return "" // an unreadable key is reported where it is needed
	}
	return digests[0]
}

// accounts are the keys of service accounts' tokens, parsed.
type accounts struct {
	keys    []crypto.PublicKey // the first one's signs
	signers []crypto.Signer    // of keys; nil where this machine has none
	former  []formerAccount
}

type formerAccount struct {
	key   crypto.PublicKey
	until time.Time
}

func (b Bundle) accounts(keys []crypto.Signer) (a accounts, err error) {
	for _, text := range b.AccountKeys {
		public, err := parsePublic(text)
		if err != nil {
			return a, fmt.Errorf("key of service accounts: %w", err)
		}
		var signer crypto.Signer
		for _, key := range keys {
			if SamePublicKey(key.Public(), public) {
				signer = key
			}
		}
		a.keys, a.signers = append(a.keys, public), append(a.signers, signer)
	}
	for _, f := range b.FormerAccountKeys {
		public, err := parsePublic(f.Key)
		if err != nil {
			return a, fmt.Errorf("former key of service accounts: %w", err)
		}
		a.former = append(a.former, formerAccount{public, f.Until})
	}
	return a, nil
}

// AccountKeys returns the key that signs the tokens of service accounts, nil on a machine without
// it. others are the other public keys that verify tokens at that time: former keys, and those of
// servers that are a step ahead or behind in the exchange.
func (t *Trust) AccountKeys(now time.Time) (sign crypto.Signer, others []crypto.PublicKey) {
	a := &t.current().accounts
	if len(a.keys) > 0 {
		sign, others = a.signers[0], append(others, a.keys[1:]...)
	}
	for _, f := range a.former {
		if now.Before(f.until) {
			others = append(others, f.key)
		}
	}
	return sign, others
}

func marshalPublic(public crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", fmt.Errorf("encode the public key: %w", err)
	}
	return string(encodePEM("PUBLIC KEY", der)), nil
}

func parsePublic(text string) (crypto.PublicKey, error) {
	der, err := decodePEM([]byte(text), "PUBLIC KEY")
	if err != nil {
		return nil, err
	}
	return x509.ParsePKIXPublicKey(der)
}

// KeyUse is the use of a key that all servers have.
type KeyUse string

const (
	CAKey         KeyUse = "the CA"
	AccountKey    KeyUse = "service accounts"
	PeersKey      KeyUse = "the CA of peers"
	FrontProxyKey KeyUse = "the CA of the front proxy"
)

// Optional reports whether a cluster may be without a key for the use.
func (u KeyUse) Optional() bool { return u == PeersKey || u == FrontProxyKey }

// KeyNeed names a key that every server has.
type KeyNeed struct {
	Use    KeyUse
	Digest string // of the public key, see KeyDigest
}

func (n KeyNeed) String() string { return fmt.Sprintf("the key of %s, %s", n.Use, n.Digest[:16]) }

// NeedsKeys returns the keys that every server needs. These are the keys of the issuing and the
// next CA for each purpose, and of the tokens of service accounts. A CA of several purposes has the
// use CAKey.
func (b Bundle) NeedsKeys() ([]KeyNeed, error) {
	cas, err := b.Digests()
	if err != nil {
		return nil, err
	}
	accounts, err := accountDigests(b.AccountKeys)
	if err != nil {
		return nil, err
	}
	type used struct {
		use     KeyUse
		digests []string
	}
	all := []used{{CAKey, cas}, {AccountKey, accounts}}
	for _, own := range ownPurposes {
		digests, err := digestsOf(*b.list(own.purpose))
		if err != nil {
			return nil, err
		}
		all = append(all, used{own.use, digests})
	}
	var needs []KeyNeed
	for _, of := range all {
		if len(of.digests) > 0 {
			needs = append(needs, KeyNeed{of.use, of.digests[0]})
		}
		if b.Step == Spreading && len(of.digests) > 1 {
			needs = append(needs, KeyNeed{of.use, of.digests[len(of.digests)-1]})
		}
	}
	return slices.DeleteFunc(needs, func(n KeyNeed) bool { return n.Use.Optional() && slices.Contains(cas, n.Digest) }),
		nil
}

// RetiredKeys returns the keys that servers had and that sign nothing any more, those of undone
// exchanges too. It knows the keys in the bundle only. A key for a later bundle is not among them.
func (b Bundle) RetiredKeys() ([]KeyNeed, error) {
	needs, err := b.NeedsKeys()
	if err != nil {
		return nil, err
	}
	cas, err := b.everyDigest()
	if err != nil {
		return nil, err
	}
	texts := slices.Clone(b.AccountKeys)
	for _, f := range b.FormerAccountKeys {
		texts = append(texts, f.Key)
	}
	accounts, err := accountDigests(texts)
	if err != nil {
		return nil, err
	}
	var retired []KeyNeed
	for _, digest := range slices.Concat(cas, b.Former) {
		for _, use := range []KeyUse{CAKey, PeersKey, FrontProxyKey} {
			retired = append(retired, KeyNeed{use, digest})
		}
	}
	for _, digest := range accounts {
		retired = append(retired, KeyNeed{AccountKey, digest})
	}
	return slices.DeleteFunc(retired, func(k KeyNeed) bool { return slices.Contains(needs, k) }), nil
}

// accountDigests returns the digests of public keys (PEM) of service accounts.
func accountDigests(texts []string) ([]string, error) {
	var out []string
	for _, text := range texts {
		public, err := parsePublic(text)
		if err != nil {
			return nil, fmt.Errorf("key of service accounts: %w", err)
		}
		digest, err := publicDigest(public)
		if err != nil {
			return nil, err
		}
		out = append(out, digest)
	}
	return out, nil
}
