// Package htpasswd checks passwords against the hashes that the program of that name writes.
package htpasswd

import (
	"crypto/sha1"
	"crypto/subtle"
	"encoding/base64"
	"strings"

	"golang.org/x/crypto/bcrypt"
)

// Matches reports whether a password has a hash. Hashes of other kinds, and passwords in clear,
// never match.
func Matches(hash, password string) bool {
	if sum, ok := strings.CutPrefix(hash, "{SHA}"); ok {
		have := sha1.Sum([]byte(password)) // what htpasswd -s writes
		return subtle.ConstantTimeCompare([]byte(base64.StdEncoding.EncodeToString(have[:])), []byte(sum)) == 1
	}
	if strings.HasPrefix(hash, "$2") {
		return bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil
	}
	if strings.HasPrefix(hash, "$apr1$") || strings.HasPrefix(hash, "$1$") {
		return subtle.ConstantTimeCompare([]byte(md5Crypt(hash, password)), []byte(hash)) == 1
	}
	return false
}
