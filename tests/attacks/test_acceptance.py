"""Every registered attack has its five trials, which this table names; `python -m tests.attacks.test_acceptance` prints it.

planted: it finds what is there. shuffled: with other truth, or other rows, than the run's it is at chance, or where its guesses
are. stopped: a defense that must stop it does. not stopped: one that cannot does not. needs: where it cannot run it says
why. That it cannot run is no trial of what stops it: the first four are of figures.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from attacks.registry import ATTACKS

KINDS = ("planted", "shuffled", "stopped", "not stopped", "needs")
HERE = Path(__file__).parent
GRAPHS = "graphs/test_under_defenses"
OWN = "test_under_defenses"
FIGURES = {
    "run_attacks",
    "reconstruct",
    "attacked",
    "poisoned",
}  # what gives an attack's figures, and fixtures that do

TRIALS: dict[str, tuple[str, str, str, str, str]] = {
    "reconstruction": (
        "reconstruction/test_inference::TestPlanted::test_is_found_from_shared_entities",
        "reconstruction/test_inference::TestPlanted::test_shuffled_rows_give_chance",
        f"{OWN}::test_entity_rows_that_stay_at_home_are_named_by_chance_even_where_they_are_known",
        f"{OWN}::test_a_rule_of_the_server_keeps_it_from_no_name_and_no_triple",
        "reconstruction/test_evaluation::TestNothingToAttack::test_says_why_and_gives_zero",
    ),
    "reconstruction, learned relations": (
        "reconstruction/test_learned::TestOnFederations::test_a_planted_signal_is_found",
        f"{OWN}::test_of_other_triples_than_those_that_were_trained_on_nothing_is_learnt",
        f"{OWN}::test_noise_hides_relations_and_links_and_no_name",
        f"{OWN}::test_a_rule_of_the_server_keeps_it_from_no_name_and_no_triple",
        "reconstruction/test_learned::TestLearner::test_without_two_relations_it_says_so_and_takes_the_majority",
    ),
    "reconstruction, learned links": (
        "uploads/test_links::TestLearner::test_finds_links_and_their_relations_among_rows_that_it_never_saw",
        f"{OWN}::test_of_other_triples_than_those_that_were_trained_on_nothing_is_learnt",
        f"{OWN}::test_noise_hides_relations_and_links_and_no_name",
        f"{OWN}::test_a_rule_of_the_server_keeps_it_from_no_name_and_no_triple",
        "uploads/test_links::TestLearner::test_where_nothing_can_be_learnt_there_is_no_ranking",
    ),
    "update-recovery": (
        "test_update_recovery::test_plaintext_uploads_are_known_and_exposed",
        f"{OWN}::test_other_changes_than_those_that_were_made_are_not_recovered",
        f"{OWN}::test_noise_hides_changes",
        f"{OWN}::test_changes_in_clear_are_known_whatever_a_rule_makes_of_them",
        "test_update_recovery::test_a_client_that_sat_the_round_out_is_named",
    ),
    "membership": (
        "membership/test_inference::test_a_run_that_memorised_is_noticed_by_everybody_and_one_that_learnt_nothing_by_nobody",
        "membership/test_inference::test_triples_that_no_model_saw_give_chance_whatever_is_said_of_them",
        "membership/test_inference::test_noise_must_stop_it_in_all_that_crossed_and_sums_cannot",
        "membership/test_inference::test_noise_must_stop_it_in_all_that_crossed_and_sums_cannot",
        "membership/test_inference::test_needs_that_are_not_met_give_a_reason",
    ),
    "edges": (
        "uploads/test_edges::test_planted_pairs_are_found",
        "uploads/test_edges::test_at_shuffled_rows_it_is_chance",
        "uploads/test_edges::test_noise_stops_it",
        "uploads/test_edges::test_what_sums_and_robust_rules_cannot_stop",
        "uploads/test_edges::test_where_no_entities_cross_it_says_so",
    ),
    "edges-rounds": (
        "uploads/test_rounds::test_pairs_of_a_planted_course_stand_out_more_than_in_any_round",
        "uploads/test_rounds::test_of_other_triples_than_those_that_were_trained_on_it_knows_nothing",
        "uploads/test_rounds::test_noise_stops_it",
        "uploads/test_rounds::test_neither_a_clip_nor_sums_stop_it",
        "uploads/test_rounds::test_where_it_cannot_run_it_says_so",
    ),
    "degrees": (
        "uploads/test_degrees::test_planted_norms_are_read",
        "uploads/test_degrees::test_shuffled_norms_tell_nothing",
        "uploads/test_degrees::test_noise_stops_it",
        "uploads/test_degrees::test_trained_rows_tell_and_sums_do_not_change_that",
        "uploads/test_degrees::test_relations_by_how_far_their_rows_moved",
    ),
    "patterns": (
        "uploads/test_patterns::test_planted_patterns_are_read",
        "uploads/test_patterns::test_random_patterns_tell_nothing",
        "uploads/test_patterns::test_where_all_rows_are_sent_in_every_round_nothing_is_told",
        "uploads/test_patterns::test_what_hides_values_alone_does_not_stop_it",
        "uploads/test_patterns::test_sums_hide_them_and_dense_uploads_have_none",
    ),
    "server-aux": (
        "uploads/test_auxiliary::test_of_planted_pairs_it_tells_trained_ones",
        "uploads/test_auxiliary::test_at_shuffled_rows_it_is_chance",
        "uploads/test_auxiliary::test_noise_stops_it",
        "uploads/test_auxiliary::test_sums_do_not_stop_it",
        "uploads/test_questions::test_what_is_not_known_is_not_asked",
    ),
    "server-aux-rounds": (
        "uploads/test_rounds::test_triples_of_a_planted_course_stand_out_more_than_in_the_last_round",
        "uploads/test_rounds::test_of_other_triples_than_those_that_were_trained_on_it_knows_nothing",
        "uploads/test_rounds::test_noise_stops_it",
        "uploads/test_rounds::test_neither_a_clip_nor_sums_stop_it",
        "uploads/test_rounds::test_where_it_cannot_run_it_says_so",
    ),
    "attributes": (
        "uploads/test_attributes::test_planted_answers_are_ranked_first",
        "uploads/test_attributes::test_at_shuffled_rows_it_is_the_prior",
        "uploads/test_attributes::test_noise_stops_it",
        "uploads/test_attributes::test_trained_answers_leak_whatever_resists_clients",
        "uploads/test_attributes::test_without_sensitive_relations_it_says_so",
    ),
    "structure": (
        "uploads/test_structure::test_rows_of_another_space_are_named_by_their_place",
        "uploads/test_structure::test_shuffled_rows_are_chance",
        "uploads/test_structure::test_relation_rows_that_stay_the_clients_own_take_the_profiles_away",
        "uploads/test_structure::test_sums_of_relations_do_not_stop_it",
        "uploads/test_structure::test_where_it_cannot_run_it_says_so",
    ),
    "client-passive": (
        "clients/test_passive::test_planted_triples_are_told",
        "clients/test_passive::test_at_shuffled_rows_it_is_chance",
        "clients/test_passive::test_noise_stops_it",
        "clients/test_passive::test_sums_cannot_stop_it_since_it_reads_the_broadcasts",
        "clients/test_passive::test_where_it_cannot_run_it_says_so",
    ),
    "client-active": (
        "clients/test_active::test_planted_answers_are_read",
        "clients/test_active::test_the_answers_of_others_tell_nothing",
        "clients/test_active::test_clipped_changes_bring_it_near_chance",
        "clients/test_active::test_sums_cannot_stop_it",
        "clients/test_active::test_where_it_cannot_run_it_says_so",
    ),
    "client-guess": (
        "clients/test_guess::test_names_are_told_whatever_hides_rows",
        "clients/test_guess::test_random_answers_tell_nothing",
        "clients/test_guess::test_rows_of_two_holders_that_stay_at_home_are_not_told",
        "clients/test_guess::test_names_are_told_whatever_hides_rows",
        "clients/test_guess::test_where_it_cannot_run_it_says_so",
    ),
    "client-poison": (
        "poisoning/test_client::test_victims_believe_what_is_planted_and_not_what_is_drawn_alike",
        "poisoning/test_planting::test_what_is_planted_by_hand_is_found_and_what_nobody_plants_is_chance",
        "poisoning/test_client::test_entity_rows_that_stay_at_home_stop_it",
        "poisoning/test_client::test_secure_sums_do_not_stop_it",
        "poisoning/test_planting::test_what_cannot_be_trained_again_is_no_zero",
    ),
    "server-poison": (
        "poisoning/test_server::test_victims_believe_what_it_plants",
        "poisoning/test_planting::test_what_is_planted_by_hand_is_found_and_what_nobody_plants_is_chance",
        "poisoning/test_server::test_where_no_row_has_enough_holders_to_be_sent_there_is_no_mean_that_it_enters",
        "poisoning/test_server::test_private_union_and_sums_do_not_stop_it",
        "poisoning/test_planting::test_what_cannot_be_trained_again_is_no_zero",
    ),
    "client-spoil": (
        "poisoning/test_untargeted::test_honest_clients_lose_by_it_and_clips_by_clients_do_not_stop_it",
        f"{OWN}::test_a_client_that_does_what_it_should_spoils_nothing",
        "poisoning/test_untargeted::test_a_clip_stops_random_rows",
        "poisoning/test_untargeted::test_honest_clients_lose_by_it_and_clips_by_clients_do_not_stop_it",
        "poisoning/test_planting::test_what_cannot_be_trained_again_is_no_zero",
    ),
    "server-active": (
        "sums/test_inconsistent::test_what_is_left_of_a_sum",
        "sums/test_inconsistent::test_shuffled_truth_is_chance",
        "sums/test_inconsistent::test_clients_that_check_leave_it_what_it_had",
        "sums/test_inconsistent::test_clients_that_check_nothing_give_their_uploads_away",
        "sums/test_inconsistent::test_where_it_cannot_run_it_says_so",
    ),
    "disaggregation": (
        "sums/test_disaggregation::test_planted_changes_are_found",
        "sums/test_disaggregation::test_shuffled_truth_is_chance",
        "sums/test_disaggregation::test_noise_stops_it",
        "sums/test_disaggregation::test_it_knows_more_than_one_sum_tells",
        "sums/test_disaggregation::test_where_it_cannot_run_it_says_so",
    ),
    "graph-membership": (
        "graphs/test_graph_membership::TestFound::test_members_of_an_overfitted_federation",
        "graphs/test_graph_membership::test_graphs_that_were_never_trained_on_give_chance",
        f"{GRAPHS}::test_sums_do_not_keep_members_from_the_models_and_noise_does",
        f"{GRAPHS}::test_sums_do_not_keep_members_from_the_models_and_noise_does",
        "graphs/test_graph_membership::TestFound::test_from_uploads_with_layers_of_ones_own",
    ),
    "degree-support": (
        "graphs/test_degree_support::test_degrees_are_found_exactly",
        f"{GRAPHS}::test_degrees_of_others_are_told_no_better_than_so_many_at_random",
        f"{GRAPHS}::test_noise_hides_degrees",
        f"{GRAPHS}::test_a_clip_by_the_server_hides_no_upload_from_it",
        "graphs/test_degree_support::test_what_cannot_be_told",
    ),
    "property-inference": (
        "graphs/test_graph_properties::test_class_shares_are_read_off_whole_networks",
        "graphs/test_graph_properties::test_whose_upload_is_read_matters",
        "graphs/test_graph_properties::test_noise_hides_class_shares",
        f"{GRAPHS}::test_a_clip_by_the_server_hides_no_upload_from_it",
        "graphs/test_graph_properties::test_where_nothing_is_inferred",
    ),
    "client-kinship": (
        "graphs/test_kinship::test_clients_of_opposed_data_are_told_apart_and_noise_hides_them",
        "graphs/test_kinship::test_cosines_that_say_nothing_give_chance",
        "graphs/test_kinship::test_clients_of_opposed_data_are_told_apart_and_noise_hides_them",
        f"{GRAPHS}::test_a_clip_by_the_server_hides_no_upload_from_it",
        "graphs/test_kinship::test_without_two_kinds_of_pairs_there_is_nothing_to_tell",
    ),
    "gradient-inversion": (
        "graphs/inversion/test_evaluation::test_graphs_of_a_round_of_fedsgd_are_recovered",
        f"{GRAPHS}::test_of_another_clients_graph_inversion_tells_what_known_graphs_do",
        f"{GRAPHS}::test_noise_hides_graphs",
        f"{GRAPHS}::test_a_clip_by_the_server_hides_no_upload_from_it",
        "graphs/inversion/test_evaluation::test_what_cannot_be_attacked_says_why",
    ),
    "backdoor": (
        "graphs/test_backdoor::test_a_backdoor_works_where_it_was_planted",
        "graphs/test_backdoor::test_where_nothing_is_poisoned_nothing_changes",
        f"{GRAPHS}::test_sums_do_not_stop_a_backdoor_and_noise_does",
        f"{GRAPHS}::test_sums_do_not_stop_a_backdoor_and_noise_does",
        "graphs/test_backdoor::test_what_cannot_be_attacked_says_why",
    ),
    "server-order": (
        "sums/test_active_sums::test_misordered_requests_read_an_upload_of_clients_that_check_no_order",
        "sums/test_active_sums::test_misordered_requests_and_shuffled_truth_are_chance",
        "sums/test_active_sums::test_misordered_requests_read_an_upload_of_clients_that_check_no_order",
        "sums/test_active_sums::test_misordered_requests_read_an_upload_of_clients_that_check_no_order",
        "sums/test_active_sums::test_plaintext_uploads_are_no_sums",
    ),
    "dropout-difference": (
        "sums/test_active_sums::test_a_dropped_client_shows_what_it_holds",
        "sums/test_active_sums::test_complete_sums_show_nothing_by_dropping_a_client",
        "sums/test_active_sums::test_complete_sums_show_nothing_by_dropping_a_client",
        "sums/test_active_sums::test_a_dropped_client_shows_what_it_holds",
        "sums/test_active_sums::test_plaintext_uploads_are_no_sums",
    ),
    "count-lies": (
        "sums/test_active_sums::test_lies_about_counts_open_rows_with_few_holders",
        "sums/test_active_sums::test_lies_about_counts_open_rows_with_few_holders",
        "sums/test_active_sums::test_lies_about_counts_open_rows_with_few_holders",
        "sums/test_active_sums::test_lies_about_counts_open_rows_with_few_holders",
        "sums/test_active_sums::test_plaintext_uploads_are_no_sums",
    ),
}


def names_of_tests(path: Path) -> set[str]:
    """Of a module, as `test` or `Class::test`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


def test_every_attack_that_comes_with_fkgsec_has_its_trials() -> None:
    """Other tests register attacks of their own."""
    own = {name for name, one in ATTACKS.items() if one.score.__module__.startswith("attacks.")}
    assert {name.partition(",")[0] for name in TRIALS} == own


@pytest.mark.parametrize("trial", sorted({trial for trials in TRIALS.values() for trial in trials}))
def test_a_trial_that_is_named_is_there(trial: str) -> None:
    module, _, name = trial.partition("::")
    assert name in names_of_tests(HERE / f"{module}.py"), f"{trial}: rename it in the table, too"


def reached(trial: str) -> set[str]:
    """The names that a trial and what it calls of its module mention."""
    module, _, name = trial.partition("::")
    tree = ast.parse((HERE / f"{module}.py").read_text())
    made = {one.name: one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    found: set[str] = set()
    open_names = {name.rpartition("::")[2]}
    while open_names:
        node = made[open_names.pop()]
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        names |= {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
        open_names |= (names & made.keys()) - found
        found |= names
    return found


@pytest.mark.parametrize("attack", TRIALS)
def test_trials_ask_the_attack_and_not_a_part_of_it(attack: str) -> None:
    """An attack that ignored the part, or read the truth beside it, would pass: so figures are asked, here or in a fixture."""
    planted, shuffled, stopped, passed, _ = (reached(trial) & FIGURES for trial in TRIALS[attack])
    assert planted or passed
    assert shuffled
    assert stopped


@pytest.mark.parametrize("attack", TRIALS)
def test_a_reason_is_no_trial_of_a_defense(attack: str) -> None:
    *of_figures, needs = TRIALS[attack]
    assert needs not in of_figures


if __name__ == "__main__":
    for attack, trials in TRIALS.items():
        for kind, trial in zip(KINDS, trials, strict=True):
            print(f"{attack}: {kind}: tests/attacks/{trial.replace('::', '.py::', 1)}")
