package scope

import "testing"

// TestScope: the nearest name counts, and a name is added and dropped without harm to others.
func TestScope(t *testing.T) {
	s := Scope{Names: []string{"secrets", "*.apps"}, Except: []string{"deployments.apps"}}
	for name, want := range map[string]bool{"secrets": true, "configmaps": false, "deployments.apps": false, "daemonsets.apps": true, "*.apps": true, "*.": false, All: false, "secrets.example.com": false} {
		if s.Has(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
	if s.Plain() || !(Scope{Names: []string{"secrets"}}).Plain() {
		t.Error("a wildcard is plain, or a name is not")
	}
	all := s.Add(All).Drop("configmaps").Add("deployments.apps")
	for name, want := range map[string]bool{"configmaps": false, "pods": true, "deployments.apps": true, "widgets.example.com": true, "*.": true} {
		if all.Has(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
	if again := all.Add("configmaps"); !again.Has("configmaps") || all.Has("configmaps") {
		t.Error("a scope is changed in place, or a dropped name does not come back")
	}
}
