package model

import (
	"math/rand/v2"
	"net/http"
)

// Takes reports whether a canary takes a request, in ingress-nginx's order: header, cookie, weight.
func (c *Canary) Takes(r *http.Request) bool {
	if c.Header != "" {
		value := r.Header.Get(c.Header)
		switch {
		case c.HeaderPattern != nil:
			if value != "" && c.HeaderPattern.MatchString(value) {
				return true
			}
		case c.HeaderValue != "":
			if value == c.HeaderValue {
				return true
			}
		case value == "always":
			return true
		case value == "never":
			return false
		}
	}
	if c.Cookie != "" {
		if cookie, err := r.Cookie(c.Cookie); err == nil {
			switch cookie.Value {
			case "always":
				return true
			case "never":
				return false
			}
		}
	}
	return c.Total > 0 && rand.IntN(c.Total) < c.Weight
}
