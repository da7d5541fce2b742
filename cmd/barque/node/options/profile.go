package options

import (
	"fmt"

	"github.com/barque/barque/membership/enroll"
)

// Profiles of a cluster. A profile is a set of defaults of flags; package main has it. Each node
// records its profile with the settings of its cluster, and hands it to machines that join there.
const (
	ProfileCIS = "cis"
	// NoProfile is what --profile takes for none. It is recorded as "".
	NoProfile = "none"
)

// CheckProfile refuses unknown profiles.
func CheckProfile(name string) error {
	switch name {
	case "", NoProfile, ProfileCIS:
		return nil
	}
	return fmt.Errorf("unknown profile %q: want %s or %s", name, ProfileCIS, NoProfile)
}

// RecordedProfile is that of the node with a data directory; "" is none, and that of a machine that
// has not joined.
func RecordedProfile(dataDir string) (string, error) {
	r, err := enroll.Load(dataDir)
	if err != nil || r == nil || len(r.Cluster.Settings) == 0 {
		return "", err
	}
	s, err := SettingsOf(r)
	if err != nil {
		return "", err
	}
	if err := CheckProfile(s.Profile); err != nil {
		return "", fmt.Errorf("%s: %w; a newer version has recorded it: start that one", r.Path(), err)
	}
	return s.Profile, nil
}
