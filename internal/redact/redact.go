// Package redact removes secrets from text that leaves a machine for other people. It knows the
// forms of secrets, and takes a list of others. It removes too much rather than too little. Text
// that usually holds secrets must be left out instead.
package redact

import (
	"regexp"
	"slices"
	"strings"
)

// mark replaces a removed secret.
const mark = "[REDACTED]"

// form is the pattern of a kind of secrets. A text without the hints, in lower case, has none of
// the kind; that search takes a hundredth of the time. The first group of the pattern stays.
type form struct {
	hints   []string
	pattern *regexp.Regexp
	// may is a quick check for a kind whose hints are in nearly every text.
	may func(text string) bool
}

var forms = []form{
	{[]string{"private key"},
		regexp.MustCompile(`()-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)`),
		nil},
	// JSON Web Token
	{[]string{"eyj"}, regexp.MustCompile(`()eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}`), nil},
	// key of a backup
	{[]string{"age-"}, regexp.MustCompile(`(?i)()AGE-(?:SECRET-KEY|PLUGIN)-[A-Z0-9-]+`), nil},
	// join token
	{[]string{"b1.", "b2."}, regexp.MustCompile(`()\bb[12]\.[0-9a-f]{64}\.[a-z0-9]{6}\.[a-z0-9]{16,}\b`), nil},
	// bootstrap token
	{nil, regexp.MustCompile(`()\b[a-z0-9]{6}\.[a-z0-9]{16}\b`), mayHaveToken},
	{[]string{"bearer", "basic"}, regexp.MustCompile(`(?i)(\b(?:bearer|basic)[ :=]+)[A-Za-z0-9._~+/=-]{6,}`), nil},
	{[]string{"token", "passw", "secret", "client-", "private", "gossipkey"}, // named as one
		regexp.MustCompile(
			`(?i)((?:token|password|passwd|secret|client-key-data|client-certificate-data|private[-_]?key|gossipkeys?)\\?["']?\s*[:=]\s*\[?\\?["']?)[^\s"'\\,\]}]+`), nil},
	{[]string{"--token"}, regexp.MustCompile(`(?i)(--token[= ])\S+`), nil},
	{[]string{"://"}, regexp.MustCompile(`(://[^/\s:@]*:)[^/\s:@]+@`), nil},            // password in an address
	{[]string{"="}, regexp.MustCompile(`()\b[A-Za-z0-9+/]{42,}={1,2}`), mayHaveBase64}, // base64 of 32 bytes and more
}

// Lengths in the patterns of a bootstrap token, and of base64.
const (
	tokenID, tokenSecret = 6, 16
	base64Length         = 42
)

// mayHaveToken reports whether a point stands between as many letters and digits as in a bootstrap
// token.
func mayHaveToken(text string) bool {
	return anywhere(text, '.', func(i int) bool {
		return i >= tokenID && i+tokenSecret < len(text) && all(text[i-tokenID:i], isLower) &&
			all(text[i+1:i+1+tokenSecret], isLower)
	})
}

// mayHaveBase64 reports whether an equals sign stands behind as many letters as in the base64 of a
// key.
func mayHaveBase64(text string) bool {
	return anywhere(text, '=', func(i int) bool { return i >= base64Length && all(text[i-base64Length:i], isBase64) })
}

// anywhere reports whether the byte occurs at a place that fits.
func anywhere(text string, what byte, fits func(place int) bool) bool {
	for from := 0; ; {
		i := strings.IndexByte(text[from:], what)
		if i < 0 {
			return false
		}
		if fits(from + i) {
			return true
		}
		from += i + 1
	}
}

func all(text string, is func(byte) bool) bool {
	for i := len(text) - 1; i >= 0; i-- { // the end is next to the place
		if !is(text[i]) {
			return false
		}
	}
	return true
}

func isLower(b byte) bool { return 'a' <= b && b <= 'z' || '0' <= b && b <= '9' }

func isBase64(b byte) bool { return isLower(b) || 'A' <= b && b <= 'Z' || b == '+' || b == '/' }

// Redactor removes the forms of secrets, and known secrets.
type Redactor struct{ known *strings.Replacer }

// New returns a Redactor. Known secrets below eight bytes are ignored: they occur in any text.
func New(known ...string) *Redactor {
	var pairs []string
	known = slices.Clone(known)
	slices.SortFunc(known, func(a, b string) int { return len(b) - len(a) }) // one may be a part of another
	for _, k := range known {
		if len(k) >= 8 {
			pairs = append(pairs, k, mark)
		}
	}
	return &Redactor{known: strings.NewReplacer(pairs...)}
}

// Text returns the text without secrets.
func (r *Redactor) Text(text string) string {
	text = r.known.Replace(text)
	var out strings.Builder
	for len(text) > 0 { // in pieces, most of which need no look but for their hints
		piece := cut(text)
		text = text[len(piece):]
		lower := strings.ToLower(piece)
		for _, f := range forms {
			if f.may != nil && !f.may(piece) {
				continue
			}
			if f.hints == nil ||
				slices.ContainsFunc(f.hints, func(h string) bool { return strings.Contains(lower, h) }) {
				piece = f.pattern.ReplaceAllString(piece, "${1}"+mark)
			}
		}
		out.WriteString(piece)
	}
	return out.String()
}

// pieceSize is about how long a piece of text is that is looked at.
const pieceSize = 4 << 10

// cut returns the beginning of the text, up to the end of a line. A text that may have a private
// key, which has many lines, stays whole.
func cut(text string) string {
	if len(text) <= pieceSize {
		return text
	}
	piece := upTo(text, pieceSize)
	for {
		key := strings.LastIndex(piece, "-----BEGIN ")
		if key < 0 || strings.Contains(piece[key:], "-----END ") {
			return piece
		}
		end := strings.Index(text[key:], "-----END ")
		if end < 0 {
			return text
		}
		piece = upTo(text, key+end) // in whose last line another one may begin
	}
}

// upTo returns the text up to the end of the line that the place is in.
func upTo(text string, place int) string {
	if i := strings.IndexByte(text[place:], '\n'); i >= 0 {
		return text[:place+i+1]
	}
	return text
}
