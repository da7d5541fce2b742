package translate

import "slices"

// isolated are the names of a route at a listener without those that a more specific listener of
// the same port has for itself: requests for them are that listener's, whatever routes others have.
func isolated(l *Listener, all []Listener, names []string) (own []string) {
	for _, name := range names {
		taken := slices.ContainsFunc(all, func(other Listener) bool {
			hostname := other.Model.Hostname
			_, narrower := meet(hostname, l.Model.Hostname)
			return other.Serves && other.Model.Port == l.Model.Port && other.Model.Serve == l.Model.Serve &&
				narrower && len(hostname) > len(l.Model.Hostname) && (name == hostname || below(name, hostname))
		})
		if !taken {
			own = append(own, name)
		}
	}
	return own
}
