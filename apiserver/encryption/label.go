package encryption

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/barque/barque/apiserver/storage"
)

// kmsPrefix begins values whose key a plugin of KMS v2 has encrypted. Its name follows.
const kmsPrefix = storage.Enciphered + "kms:v2:"

// keyIDField is the field keyID of upstream's EncryptedObject, which a value under a plugin is.
const keyIDField = 2

// longestKeyID bounds the ID of a plugin's key in a label; of a longer one it has the hash.
const longestKeyID = 64

// Label names the key under which a stored value is: its provider and the provider's key. For a
// plugin of KMS that is the key inside of the KMS. It is empty for a value in clear.
func Label(stored []byte) string {
	if !Enciphered(stored) {
		return ""
	}
	rest, ok := bytes.CutPrefix(stored, []byte(kmsPrefix))
	if !ok {
		return ProviderOf(stored)
	}
	name, object, ok := bytes.Cut(rest, []byte(":"))
	id, found := keyID(object)
	if !ok || !found {
		return ProviderOf(stored[:min(len(stored), len(kmsPrefix)+len(name))]) // it is damaged
	}
	return LabelOfKMS(string(name), string(id))
}

// LabelOfKMS returns the label of values under a plugin of KMS v2 and the key with an ID.
func LabelOfKMS(plugin, id string) string { return kmsPrefix + plugin + ":" + printable(id) }

// keyID finds the field without a copy of the others.
func keyID(object []byte) (id []byte, ok bool) {
	for len(object) > 0 {
		field, kind, n := protowire.ConsumeTag(object)
		if n < 0 {
			return nil, false
		}
		object = object[n:]
		if field == keyIDField && kind == protowire.BytesType {
			id, n = protowire.ConsumeBytes(object)
			return id, n >= 0
		}
		if n = protowire.ConsumeFieldValue(field, kind, object); n < 0 {
			return nil, false
		}
		object = object[n:]
	}
	return nil, false
}

func printable(id string) string {
	if len(id) > longestKeyID || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(id)))[:len("sha256-")+32]
	}
	return id
}
