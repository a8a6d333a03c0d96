"""Which of reasoning-gym 0.1.25's data sets are used, and how their answers are scored.

NUMBERS by value, TEXTS by their words, SIMULATED by the library's own scorer, which plays the answer and counts only
where it gives the full score: these have several right answers, and these scorers pay for nothing else. REFUSED has the
reason of each other one. The library's default scorer is never used: it pays for any text that contains the answer.
"""

_NUMBERS = """
aiw basic_arithmetic binary_alternation chain_sum count_bits count_primes decimal_arithmetic decimal_chain_sum
dice gcd gsm_symbolic largest_island lcm leg_counting letter_counting maze number_format number_sequence
products rectangle_count rotten_oranges self_reference simple_equations simple_geometry
"""
_TEXTS = """
ab acre arc_1d arc_agi base_conversion bf binary_matrix bitwise_arithmetic caesar_cipher calendar_arithmetic
circuit_logic color_cube_rotation course_schedule cryptarithm emoji_mystery family_relationships figlet_font
fraction_simplification futoshiki game_of_life kakurasu letter_jumble list_functions mahjong_puzzle
manipulate_matrix mini_sudoku modulo_grid needle_haystack number_filtering number_sorting path_star
pool_matrix rearc rotate_matrix sentence_reordering spell_backward spiral_matrix string_insertion
string_manipulation string_splitting string_synthesis sudoku survo syllogism time_intervals tsumego
word_sequence_reversal word_sorting zebra_puzzles
"""
_SIMULATED = "jugs palindrome_partitioning shortest_path tower_of_hanoi"
NUMBERS, TEXTS, SIMULATED = (frozenset(names.split()) for names in (_NUMBERS, _TEXTS, _SIMULATED))
ALLOWED = NUMBERS | TEXTS | SIMULATED

_REASONS = {
    "its items change with PYTHONHASHSEED": """
polynomial_multiplication isomorphic_strings ransom_note word_ladder knight_swap
""",
    "its scorer pays for wrong answers": "game_of_life_halting coin_flip polynomial_equations",
    "its scorer fails on text": "prime_factorization",
    "its scorer evaluates the answer as code": "countdown puzzle24 intermediate_integration simple_integration",
    "it has several right answers, and a scorer that was not checked": """
advanced_geometry boxnet codeio complex_arithmetic graph_color group_anagrams knights_knaves n_queens
palindrome_generation power_function propositional_logic quantum_lock rubiks_cube rush_hour sokoban
""",
    "it is made of other data sets": "composite",
}
REFUSED = {name: reason for reason, names in _REASONS.items() for name in names.split()}
