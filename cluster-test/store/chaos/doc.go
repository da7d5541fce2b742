// Program chaos breaks a group of real server processes of the store in all the ways that it knows,
// while clients read, write and watch, and checks the answers. `make chaos-store` runs it; its test
// is a short run.
//
// The faults come from a seed, which it prints: the same seed makes the same faults of the same
// parameters in the same order. Processes are not deterministic, so the effects may differ.
//
// Checked: all that package check does but for clocks, in turns of some faults each; a history of
// single keys for linearizability, by porcupine; that after each fault the group comes back whole;
// that no member ends by itself, or goes into quarantine; that all have the same state at the end
// of each turn.
//
// The report has for each fault the time in which no write succeeded. It is measured at the
// clients: the longest time between two acknowledged writes of any of them.
package main
