package scope

import "testing"

// TestScope: the nearest name counts, and a name is added and dropped without harm to others.
func TestScope(t *testing.T) {
	s := Scope{Names: []string{"secrets", "*.apps"}, Except: []string{"deployments.apps"}}
	for name, want := range map[string]bool{"secrets": true, "configmaps": false, "deployments.apps": false,
		"daemonsets.apps": true, "*.apps": true, "*.": false, All: false, "secrets.example.com": false} {
		if s.Has(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
	if s.Plain() || !(Scope{Names: []string{"secrets"}}).Plain() {
		t.Error("a wildcard is plain, or a name is not")
	}
	all := s.Add(All).Drop("configmaps").Add("deployments.apps")
	for name, want := range map[string]bool{"configmaps": false, "pods": true, "deployments.apps": true,
		"widgets.example.com": true, "*.": true} {
		if all.Has(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
	for what, got := range map[string]Scope{
		"the wildcard is dropped": (Scope{Names: []string{"*.*", "secrets"},
			Except: []string{"*.", "configmaps", "daemonsets.apps"}}).Drop(All),
		"an exception of nothing": (Scope{Names: []string{"secrets"}, Except: []string{"configmaps", "*.*"}}).Pruned(),
		"only what is named": (Scope{Names: []string{"*.apps", "secrets", "*.*"},
			Except: []string{"configmaps"}}).Named(),
	} {
		if !got.Plain() || len(got.Names) != 1 || !got.Has("secrets") {
			t.Errorf("%s: %+v", what, got)
		}
	}
	if got := (Scope{Names: []string{"*.*", "*."}, Except: []string{"configmaps"}}).Drop(Core); got.Has("pods") ||
		got.Has("configmaps") || !got.Has("deployments.apps") || len(got.Except) != 2 {
		t.Errorf("an exception under a wildcard that stays: %+v", got)
	}
	if again := all.Add("configmaps"); !again.Has("configmaps") || all.Has("configmaps") {
		t.Error("a scope is changed in place, or a dropped name does not come back")
	}
}
